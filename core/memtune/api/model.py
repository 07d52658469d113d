"""`spec.model`: how the footprint is predicted before any GPU is touched."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from memtune.api.architecture import ArchitectureFacts, Probability
from memtune.api.fields import CALLABLE, Count, Distinct, Foreign, SpecBlock, Text


class Peft(SpecBlock):
    """A LoRA adapter on a frozen base."""

    method: Literal["lora"] = Field(default="lora", description="Kind of adapter; QLoRA is lora on a quantized base.")
    rank: Annotated[Count, Field(le=4096)] = Field(default=16, description="Rank of the two adapter matrices.")
    targets: Annotated[tuple[Text, ...], Field(min_length=1, max_length=64), Distinct] = Field(
        default=("q_proj", "v_proj"), description="Names of the linear layers that get an adapter."
    )
    base_quantization: Literal["none", "int8", "nf4"] = Field(
        default="none", description="Number format of the frozen base; none keeps the precision of the plan."
    )
    dropout: Probability = Field(
        default=0.0, description="Dropout probability of what each adapter reads (lora_dropout in peft)."
    )


class Model(SpecBlock):
    """The model that is trained: exactly one of hfConfig, architecture and factory."""

    hf_config: Foreign | None = Field(default=None, description="The content of a Hugging Face config.json.")
    architecture: ArchitectureFacts | None = Field(default=None, description="The facts of the model by plain names.")
    factory: Annotated[str, Field(pattern=CALLABLE, max_length=253)] | None = Field(
        default=None, description="A Python callable module:function in the job's own image that builds the model."
    )
    factory_arguments: Foreign | None = Field(
        default=None,
        description="Keyword arguments of factory, beside micro_batch and sequence_length, which are "
        "passed if it takes them.",
    )
    peft: Peft | None = Field(default=None, description="The adapter to train; the whole model is trained if left out.")
