"""`ReplayCase`: what a trace is replayed under: a plan and the ranks that share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from memtune.memory.replay.optimizers import Piece
from memtune.plans.knobs import Attention, Sharding
from memtune.plans.plan import Plan
from memtune.wire.trace import Parameter, Program, Trace, TraceError


@dataclass(frozen=True)
class ReplayCase:
    """A trace, a plan, and the ranks of the job. ``without_reducer`` is the workload's."""

    trace: Trace
    plan: Plan
    nodes: int = 1
    gpus_per_node: int = 1
    rank: int | None = None  # None: the rank that holds most
    without_reducer: bool = False

    def __post_init__(self) -> None:
        if min(self.nodes, self.gpus_per_node) < 1:
            raise TraceError(f"{self.nodes} nodes of {self.gpus_per_node} GPUs are none; both must be at least 1")
        if self.plan.attention is Attention.EAGER or self.plan.fused_loss:
            raise TraceError(
                f"plan {self.plan}: a trace has the attention and the loss of the model's own code; let the factory "
                "build them as the plan says, and give a plan without eager and fl"
            )

    @property
    def world(self) -> int:
        """All ranks."""
        return self.nodes * self.gpus_per_node

    @property
    def shards(self) -> int:
        """The ranks that share what the plan shards."""
        return self.gpus_per_node if self.plan.sharding is Sharding.FSDP_HYBRID else self.world

    @cached_property
    def program(self) -> Program:
        """The trace's program with the numerics of the plan."""
        return self.trace.program(numerics_of(self.plan))

    @property
    def is_stage_3(self) -> bool:
        """Whether DeepSpeed shards the weights."""
        return self.plan.sharding.backend == "deepspeed" and self.plan.sharding.zero_stage == 3

    @property
    def keeps_inputs(self) -> bool:
        """Whether products keep their inputs even with frozen weights, as DeepSpeed's own do (zero/linear.py)."""
        return self.is_stage_3 and not self.plan.checkpointing.keeps_products

    @property
    def learning(self) -> Sequence[Parameter]:
        """The trainable weights."""
        return [each for each in self.trace.parameters if each.learns]

    @property
    def reached(self) -> Sequence[Parameter]:
        """The weights that get a gradient; torch's optimizers skip others."""
        return [self.trace.parameters[each] for each in sorted(set(self.program.gradients))]

    @property
    def unreached(self) -> Sequence[int]:
        """The numbers of trainable weights without a gradient."""
        reached = set(self.program.gradients)
        return [n for n, each in enumerate(self.trace.parameters) if each.learns and n not in reached]

    def pieces(self, parameters: Sequence[Parameter], shards: int) -> list[Piece]:
        """The elements that each rank steps if every weight is cut along its first dimension, as in FSDP."""
        return [
            Piece(shard(each, shards), -(-each.rows // shards), each.block >= 0) for each in parameters if each.rows
        ]


def numerics_of(plan: Plan) -> str:
    """Which program of a trace computes as a plan does: DDP casts as it goes, the others cast weights."""
    if plan.compute_bytes == 4:
        return "full"
    return "autocast" if plan.sharding.backend == "ddp" else "half"


def shard(parameter: Parameter, shards: int) -> int:
    """The elements of the first rank's shard of a weight, in whole rows (torch.chunk)."""
    return parameter.elements // max(parameter.rows, 1) * -(-parameter.rows // shards)
