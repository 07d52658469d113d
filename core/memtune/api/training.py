"""`spec.training` and `spec.resources`: what one optimizer step is, and on which GPUs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from memtune.api.fields import (
    LABEL_VALUE,
    MOST,
    RESOURCE_NAME,
    AbsolutePath,
    Count,
    Flag,
    Price,
    Quantity,
    Share,
    SpecBlock,
    left_out,
    to_ratio,
)
from memtune.plans.knobs import Attention, GradientDtype, Optimizer


class GenerationBlock(SpecBlock):
    """The sequences that one GPU generates at once, and the paging of its KV cache."""

    concurrent_sequences: Annotated[Count, Field(le=100_000)] | None = Field(
        default=None, description="Sequences in the KV cache of one GPU at the same time; batchSize if left out."
    )
    sequence_tokens: Annotated[Count, Field(le=10_000_000)] | None = Field(
        default=None,
        description="Tokens of the longest of these sequences, its prompt included; sequenceLength if left out.",
    )
    page_tokens: Annotated[Count, Field(le=1024)] = Field(
        default=16, description="Tokens of one page of the KV cache; 16 is what vLLM takes, 1 is no paging."
    )


class EvaluationBlock(SpecBlock):
    """The evaluation that runs between training steps."""

    batch_size: Annotated[Count, Field(le=100_000)] = Field(description="Sequences of one evaluation batch per GPU.")
    keeps_logits: Flag = Field(
        default=False, description="Whether the logits of all evaluation batches are kept on the GPU."
    )
    generates: Flag = Field(default=False, description="Whether evaluation generates text, and so needs a KV cache.")
    generation: GenerationBlock = Field(
        default=left_out(GenerationBlock),
        description="Sequences that are generated at once; only used if generates is true.",
    )


class Training(SpecBlock):
    """One optimizer step. No plan changes it; a downgrade only does what retry.consent allows."""

    global_batch_size: Annotated[Count, Field(le=10_000_000)] = Field(
        description="Sequences per optimizer step over all GPUs; it must be divisible by their number."
    )
    sequence_length: Annotated[Count, Field(le=10_000_000)] = Field(
        description="Tokens of the longest sequence; memory is predicted and probed at this length."
    )
    varying_lengths: Flag = Field(
        default=False,
        description="Whether batches vary in length up to sequenceLength, as where each is padded to its longest "
        "sequence only. Without expandable segments, torch's allocator then reserves far more than it needs.",
    )
    optimizer: Optimizer = Field(
        default=Optimizer.ADAMW, description="The optimizer, and with it the size of its states."
    )
    gradient_dtype: GradientDtype = Field(
        default=GradientDtype.MODEL,
        description="Number format of accumulated gradients; model is that of the weights.",
    )
    attention: Attention = Field(
        default=Attention.FLASH,
        description="The attention kernel of the script: flash, torch's sdpa, or eager, which keeps the scores.",
    )
    compile: Flag = Field(default=False, description="Whether the script compiles the model with torch.compile.")
    compile_loss: Flag | None = Field(
        default=None,
        description="Whether the script compiles the loss. If left out, the loss counts as compiled with compile, "
        "unless FSDP shards the model, whose blocks are compiled one by one.",
    )
    target_length: Annotated[Count, Field(le=10_000_000)] | None = Field(
        default=None, description="Tokens of an encoder-decoder's longest target; sequenceLength if left out."
    )
    evaluation: EvaluationBlock | None = Field(
        default=None, description="The evaluation between training steps; none runs if left out."
    )


class Shrink(SpecBlock):
    """Memory that a virtual or emulated GPU loses during the training, as if to another process."""

    after_step: Annotated[Count, Field(le=MOST)] = Field(
        description="Optimizer steps of the training after which the memory is gone, for every attempt from then on."
    )
    by: Share = Field(description="Share of gpuMemory that is lost, like 45%.")

    @property
    def ratio(self) -> float:
        """The lost fraction of memory."""
        return to_ratio(self.by)


class Resources(SpecBlock):
    """The GPUs of the job. Every run, probe or train, takes all of them."""

    nodes: Annotated[Count, Field(le=1024)] = Field(
        default=1, description="Pods of one run, each on a node of its own."
    )
    gpus_per_node: Annotated[Count, Field(le=64)] = Field(default=1, description="GPUs of one pod.")
    gpu_memory: Quantity | None = Field(
        default=None,
        description="Memory of one GPU, like 80Gi; read from the node's labels or the first probe if left out.",
    )
    memory_share: Share | None = Field(
        default=None,
        description="Share of each GPU's memory that is the job's, like 50%, where others use the same GPU (by MPS, or "
        "in time slices); all of it if left out.",
    )
    gpu_product: Annotated[str, Field(pattern=LABEL_VALUE, max_length=63)] | None = Field(
        default=None,
        description="GPU product as the node label nvidia.com/gpu.product names it, such as NVIDIA-A100-SXM4-80GB; "
        "any if left out.",
    )
    gpu_resource: Annotated[str, Field(pattern=RESOURCE_NAME, max_length=253)] = Field(
        default="nvidia.com/gpu", description="Extended resource that a pod asks for to get a GPU."
    )
    device: Literal["cuda", "virtual", "emulated"] = Field(
        default="cuda",
        description="cuda runs on GPUs; virtual rehearses on CPU against a modelled GPU of gpuMemory; emulated runs on "
        "an emulated gpuProduct, in a pod without a GPU, which counts memory and computes nothing.",
    )
    gpu_hour_price: Price | None = Field(
        default=None,
        description="Dollars of one GPU, as the job asks for it, for one hour; the operator's price of the product if "
        "left out. It is shown as cost per million tokens and may change at any time; it decides nothing but which GPU "
        "product a job with the objective cost takes.",
    )
    nvme_path: AbsolutePath | None = Field(
        default=None, description="Directory of the container on a local NVMe disk, for plans that offload to nvme."
    )
    shrink: Shrink | None = Field(
        default=None,
        description="A fault for rehearsals: memory that the virtual or emulated GPU loses while the job trains; "
        "refused on cuda.",
    )

    @property
    def world(self) -> int:
        """All GPUs of the job."""
        return self.nodes * self.gpus_per_node

    @property
    def is_emulated(self) -> bool:
        """Whether the job runs on emulated GPUs."""
        return self.device == "emulated"

    @property
    def pods(self) -> int:
        """Pods of a run: one for each node, but a single one for all ranks on emulated GPUs."""
        return 1 if self.is_emulated else self.nodes

    @property
    def gpus_per_pod(self) -> int:
        """GPUs that one pod of a run uses or emulates."""
        return self.world // self.pods

    @property
    def is_part(self) -> bool:
        """Whether the job has only a part of each GPU: a MIG slice, or a share of its memory."""
        return "/mig-" in self.gpu_resource or self.memory_share is not None

    @property
    def memory_ratio(self) -> float:
        """The job's fraction of each GPU's memory."""
        return to_ratio(self.memory_share) if self.memory_share else 1.0
