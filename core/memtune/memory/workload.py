"""`Workload`: what a job asks of every plan alike: the model, the batch and the GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from memtune.gpus.gpu import Gpu
from memtune.memory.kv_cache import Generation
from memtune.memory.optimizer_bytes import BYTES, OptimizerBytes
from memtune.memory.traced_model import TracedModel
from memtune.model.architecture import Adapter, Architecture
from memtune.plans.knobs import Optimizer


@dataclass(frozen=True)
class Evaluation:
    """The evaluation batch of a job on each rank, and what it generates; 0 means the batch's own size or length."""

    batch_size: int = 0
    keeps_logits: bool = False
    generates: bool = False
    concurrent_sequences: int = 0
    sequence_tokens: int = 0
    page_tokens: int = 16

    def generation(self, sequence_length: int, source_tokens: int = 0) -> Generation:
        """The tokens in the KV cache at once; for an encoder-decoder also its input."""
        sequences, tokens = self.concurrent_sequences or self.batch_size, self.sequence_tokens or sequence_length
        return Generation(sequences, tokens, source_tokens, page_tokens=self.page_tokens)


@dataclass(frozen=True)
class Workload:
    """The facts of a job that no plan may change. With ``assumed`` the model is unknown.

    ``overhead_bytes`` is what earlier jobs of the same image, GPU and world measured outside the allocator, one each.
    If ``fake_ranks`` stand for all but one rank, nothing is sent, and NCCL takes nothing.
    ``without_reducer`` says that nothing wraps the model in DistributedDataParallel, as on a single GPU.
    ``without_autocast`` says that nothing autocasts the model, and its own loss, under FSDP and DeepSpeed.
    ``builds_whole`` says that a model is whole on each GPU before DeepSpeed's stage 3 shards it (no zero.Init).
    ``keeps_outputs`` says that a loop keeps the model's outputs until the next step; accelerate widens them to fp32.
    ``drops_outputs`` says that only the loss is left of them when the backward pass begins.
    ``defers_reduction`` says that FSDP reduces gradients with the last micro-batch of a step only.
    ``plain_sgd`` says that SGD has no momentum, and so no states.
    ``casts_frozen`` says that frozen weights are in the compute format, even if peft widened them. ``in_transformers``
    says that the model's code is that of transformers. ``recomputes_loss`` says that a fused loss makes its logits
    again in the backward pass, as the built-in trainer's. ``compiles_loss`` says whether the loss is compiled, None if
    unknown. ``varying_lengths`` says that batches vary in length, up to the sequence length. ``target_length`` is that
    of an encoder-decoder's targets, 0 if they are as long as its sources. ``host_limit_bytes`` is the host memory limit
    of a pod, 0 if there is none.
    """

    model: Architecture | TracedModel
    gpu: Gpu
    global_batch: int
    sequence_length: int
    nodes: int = 1
    gpus_per_node: int = 1
    adapter: Adapter | None = None
    evaluation: Evaluation = Evaluation()
    compiled: bool = False
    compiles_loss: bool | None = None
    varying_lengths: bool = False
    target_length: int = 0
    virtual: bool = False
    assumed: bool = False
    overhead_bytes: tuple[int, ...] = ()
    fake_ranks: bool = False
    without_reducer: bool = False
    without_autocast: bool = False
    builds_whole: bool = False
    keeps_outputs: bool = False
    drops_outputs: bool = False
    defers_reduction: bool = False
    plain_sgd: bool = False
    casts_frozen: bool = False
    in_transformers: bool = False
    recomputes_loss: bool = False
    host_limit_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("global_batch", "sequence_length", "nodes", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"workload: {name} is {getattr(self, name)}; it must be at least 1")
        if self.global_batch % self.world:
            below = self.global_batch - self.global_batch % self.world
            raise ValueError(
                f"workload: global_batch {self.global_batch} cannot be divided among {self.world} GPUs; "
                f"use {f'{below} or ' if below else ''}{below + self.world}"
            )

    @property
    def traced(self) -> TracedModel | None:
        """The model, if it was traced rather than described."""
        return None if isinstance(self.model, Architecture) else self.model

    @property
    def world(self) -> int:
        """All GPUs of the job."""
        return self.nodes * self.gpus_per_node

    def optimizer_bytes(self, optimizer: Optimizer) -> OptimizerBytes:
        """The bytes that an optimizer keeps and allocates, as the job's integration makes it."""
        is_plain = self.plain_sgd and optimizer is Optimizer.SGD
        return OptimizerBytes(0.0) if is_plain else BYTES[optimizer]

    @property
    def samples_per_rank(self) -> int:
        """Sequences per rank and optimizer step: micro-batch x accumulation of every plan."""
        return self.global_batch // self.world
