"""`spec.model`: how the footprint is predicted before any GPU is touched."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from memtune.model.architecture import Kind
from memtune.spec.fields import CALLABLE, Block, Count, Distinct, Flag, Foreign, Number, Text, Whole

LayerCount = Annotated[Whole, Field(ge=0, le=10_000)]
Size = Annotated[Count, Field(le=100_000_000)]
Probability = Annotated[Number, Field(ge=0, lt=1)]


class ExpertFacts(Block):
    """The mixture-of-experts feed-forward of a model."""

    count: Annotated[Count, Field(le=10_000)] = Field(description="Experts in one layer.")
    per_token: Annotated[Count, Field(le=10_000)] = Field(description="Experts that each token visits.")
    ffn_size: Size = Field(description="Width of the feed-forward of one expert.")
    shared_ffn_size: Annotated[Whole, Field(ge=0)] = Field(
        default=0,
        description="Width of the feed-forward that every token visits beside its experts; 0 if there is none.",
    )
    dense_layers: LayerCount = Field(
        default=0, description="Layers that have an ordinary feed-forward instead of experts."
    )


class ArchitectureFacts(Block):
    """A transformer by plain names."""

    kind: Kind = Field(default=Kind.DECODER, description="Shape of the whole model.")
    hidden_size: Size = Field(description="Width of the residual stream.")
    layers: Annotated[Count, Field(le=10_000)] = Field(description="Layers of the main stack.")
    heads: Annotated[Count, Field(le=100_000)] = Field(description="Attention heads of one layer.")
    kv_heads: Annotated[Count, Field(le=100_000)] | None = Field(
        default=None, description="Key and value heads of one layer; as many as heads if left out."
    )
    head_dim: Size | None = Field(default=None, description="Width of one head; hiddenSize / heads if left out.")
    ffn_size: Size = Field(description="Width of the feed-forward of one layer.")
    vocab_size: Size = Field(description="Rows of the token embedding.")
    gated_ffn: Flag = Field(
        default=True, description="Whether the feed-forward has a gate, and so three matrices and not two."
    )
    norm: Literal["rms", "layer"] = Field(default="rms", description="Kind of normalization.")
    tied_embeddings: Flag = Field(default=False, description="Whether the output head shares the token embedding.")
    encoder_layers: LayerCount = Field(default=0, description="Layers of the encoder of an encoder-decoder.")
    experts: ExpertFacts | None = Field(default=None, description="The mixture of experts; a dense model if left out.")
    hidden_dropout: Probability = Field(default=0.0, description="Dropout probability of hidden states.")
    attention_dropout: Probability = Field(default=0.0, description="Dropout probability of attention scores.")


class Peft(Block):
    """A LoRA adapter on a frozen base."""

    method: Literal["lora"] = Field(default="lora", description="Kind of adapter; QLoRA is lora on a quantized base.")
    rank: Annotated[Count, Field(le=4096)] = Field(default=16, description="Rank of the two adapter matrices.")
    targets: Annotated[tuple[Text, ...], Field(min_length=1, max_length=64), Distinct] = Field(
        default=("q_proj", "v_proj"), description="Names of the linear layers that get an adapter."
    )
    base_quantization: Literal["none", "int8", "nf4"] = Field(
        default="none", description="Number format of the frozen base; none keeps the precision of the plan."
    )


class Model(Block):
    """The model that is trained: exactly one of hfConfig, architecture and factory."""

    hf_config: Foreign | None = Field(default=None, description="The content of a Hugging Face config.json.")
    architecture: ArchitectureFacts | None = Field(default=None, description="The facts of the model by plain names.")
    factory: Annotated[str, Field(pattern=CALLABLE, max_length=253)] | None = Field(
        default=None, description="A Python callable module:function in the job's own image that builds the model."
    )
    peft: Peft | None = Field(default=None, description="The adapter to train; the whole model is trained if left out.")
