"""What a job asks of every plan alike: the model, the batch, the GPUs. A plan says how, a workload says what."""

from __future__ import annotations

from dataclasses import dataclass

from memtune.gpu import Gpu
from memtune.model.architecture import Adapter, Architecture


@dataclass(frozen=True)
class Evaluation:
    """The evaluation batch of a job, on each rank."""

    batch_size: int = 0
    keeps_logits: bool = False
    generates: bool = False


@dataclass(frozen=True)
class Workload:
    """The facts of a job that no plan may change."""

    architecture: Architecture
    gpu: Gpu
    global_batch: int
    sequence_length: int
    nodes: int = 1
    gpus_per_node: int = 1
    adapter: Adapter | None = None
    evaluation: Evaluation = Evaluation()
    compiled: bool = False

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
    def world(self) -> int:
        """All GPUs of the job."""
        return self.nodes * self.gpus_per_node

    @property
    def samples_per_rank(self) -> int:
        """Sequences per rank and optimizer step: micro-batch x accumulation of every plan."""
        return self.global_batch // self.world
