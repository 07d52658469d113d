"""The downgrade ladder: the next smaller plan after an out-of-memory, with the same global batch.

Each rung is a pure step from one plan to a smaller one, or to None at its end. `memtune.controller.oom_recovery` takes
the ladder's plan only if no plan of the job's space that fits is faster. The predictor always says what a step
saves, since a smaller micro-batch can need more: gradients then live through the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from memtune.memory.prediction import PredictsPlans
from memtune.memory.workload import Workload
from memtune.planning.space import divisors, host_refusal, refusal
from memtune.plans.knobs import FULL, SELECTIVE, GradientDtype, Offload, Optimizer, Precision, Sharding
from memtune.plans.plan import Plan

_BUCKETS = (200_000_000, 100_000_000, 50_000_000)
_NEXT_SHARDING = {
    Sharding.DDP: Sharding.FSDP_SHARD_GRAD_OP,
    Sharding.ZERO_0: Sharding.ZERO_1,
    Sharding.ZERO_1: Sharding.ZERO_2,
    Sharding.ZERO_2: Sharding.ZERO_3,
    Sharding.FSDP_SHARD_GRAD_OP: Sharding.FSDP,
    Sharding.FSDP_HYBRID: Sharding.FSDP,
}


class OutOfMemoryKind(str, Enum):
    """The kind of out-of-memory that a run died of."""

    FRAGMENTATION = "fragmentation"
    ACTIVATION = "activation"
    STATE = "state"
    OUTSIDE = "outside"
    EVALUATION = "evaluation"
    SAVING = "saving"


# The phase of a prediction in which an out-of-memory outside the training happened.
PHASE_OF = {OutOfMemoryKind.EVALUATION: "evaluation", OutOfMemoryKind.SAVING: "save"}


@dataclass(frozen=True)
class Rung:
    """One step of the ladder. ``consent`` names what the user must allow first if numerics change.

    ``costly`` rungs are used only if all others together are not enough: transfers of offload slow a step down.
    """

    name: str
    down: Callable[[Plan], Plan | None]
    kinds: frozenset[OutOfMemoryKind]
    consent: str = ""
    costly: bool = False

    def options(self, plan: Plan) -> Iterator[Plan]:
        """The plans below this one on the rung, the nearest first."""
        below = self.down(plan)
        while below is not None:
            yield below
            below = self.down(below)


@dataclass(frozen=True)
class Failure:
    """An out-of-memory of a run: its kind, and the number of missing bytes."""

    kind: OutOfMemoryKind
    deficit_bytes: float


@dataclass(frozen=True)
class Downgrade:
    """The settings of the relaunch. Only a failed evaluation or save keeps the plan."""

    plan: Plan
    rungs: tuple[str, ...]
    saved_bytes: float = 0.0
    evaluation_batch: int | None = None
    sharded_save: bool = False


@dataclass(frozen=True)
class Exhausted:
    """Nothing that may be tried saves enough. ``best`` is the smallest allowed plan."""

    best: Plan
    missing_bytes: float


def descend(
    workload: Workload,
    predictor: PredictsPlans,
    plan: Plan,
    failure: Failure,
    consent: frozenset[str] = frozenset(),
    margin_bytes: float = 0.0,
    allowed: Callable[[Plan], bool] | None = None,
) -> Downgrade | Exhausted:
    """The first relevant rung whose predicted saving covers the deficit and a margin, or several rungs combined.

    ``allowed`` rejects plans that the job's space or its newest checkpoint rules out.
    """
    if failure.kind is OutOfMemoryKind.EVALUATION:
        return _smaller_evaluation(workload, plan, failure)
    if failure.kind is OutOfMemoryKind.SAVING:
        return _sharded_save(plan, failure)
    search = _Search(workload, predictor, plan, failure.deficit_bytes + margin_bytes, allowed)
    rungs = [r for r in RUNGS if failure.kind in r.kinds and (not r.consent or r.consent in consent)]
    cheap = [rung for rung in rungs if not rung.costly]
    return search.enough(cheap) or search.enough(rungs) or search.exhausted(rungs)


def _smaller_evaluation(workload: Workload, plan: Plan, failure: Failure) -> Downgrade | Exhausted:
    """Half the evaluation batch, or the micro-batch if smaller: training has shown that it fits."""
    size = workload.evaluation.batch_size
    if size <= 1:
        return Exhausted(plan, failure.deficit_bytes)
    return Downgrade(plan, ("evaluation-batch",), evaluation_batch=min(size // 2, plan.micro_batch))


def _sharded_save(plan: Plan, failure: Failure) -> Downgrade | Exhausted:
    """Save in shards; only a plan that shards the parameters gathers them for a save."""
    if plan.sharding.zero_stage < 3:
        return Exhausted(plan, failure.deficit_bytes)
    return Downgrade(plan, ("sharded-save",), sharded_save=True)


class _Search:
    """The ladder below one plan. Savings are differences in the predicted memory of a whole rank."""

    def __init__(
        self,
        workload: Workload,
        predictor: PredictsPlans,
        plan: Plan,
        needed_bytes: float,
        allowed: Callable[[Plan], bool] | None,
    ) -> None:
        self._workload = workload
        self._predictor = predictor
        self._plan = plan
        self._needed_bytes = needed_bytes
        self._allowed = allowed
        self._known: dict[Plan, float] = {}

    def _bytes(self, plan: Plan) -> float:
        if plan not in self._known:
            self._known[plan] = self._predictor.predict(plan).device.expected
        return self._known[plan]

    def _saving(self, plan: Plan) -> float:
        return self._bytes(self._plan) - self._bytes(plan)

    def _options(self, rung: Rung, plan: Plan) -> Iterator[Plan]:
        return filter(self._may_run, rung.options(plan))

    def _may_run(self, plan: Plan) -> bool:
        return (
            refusal(self._workload, plan) is None
            and (self._allowed is None or self._allowed(plan))
            and self._is_held(plan)
        )

    def _is_held(self, plan: Plan) -> bool:
        """Whether the host can hold what a plan offloads; it can if the failed plan offloaded the same."""
        is_shown = plan.offload is self._plan.offload
        return is_shown or host_refusal(self._workload, self._predictor, plan) is None

    def enough(self, rungs: list[Rung]) -> Downgrade | None:
        """The first rung that is enough alone, else rungs combined from the top until they are."""
        for rung in rungs:
            for option in self._options(rung, self._plan):
                if self._covers(option):
                    return Downgrade(option, (rung.name,), self._saving(option))
        plan, taken = self._together(rungs)
        return Downgrade(plan, taken, self._saving(plan)) if self._covers(plan) else None

    def exhausted(self, rungs: list[Rung]) -> Exhausted:
        """The memory that is still missing at the bottom of all rungs together."""
        plan, _ = self._together(rungs)
        return Exhausted(plan, self._needed_bytes - self._saving(plan))

    def _together(self, rungs: list[Rung]) -> tuple[Plan, tuple[str, ...]]:
        plan, taken = self._plan, []
        for rung in rungs:
            below = self._furthest(rung, plan)
            if below != plan:
                plan = below
                taken.append(rung.name)
            if self._covers(plan):
                break
        return plan, tuple(taken)

    def _furthest(self, rung: Rung, plan: Plan) -> Plan:
        """As far down one rung as it saves memory, but no further than needed."""
        best = plan
        for option in self._options(rung, plan):
            if self._saving(option) > self._saving(best):
                best = option
            if self._covers(best):
                break
        return best

    def _covers(self, plan: Plan) -> bool:
        saving = self._saving(plan)
        return saving > 0 and saving >= self._needed_bytes


def _allocator(plan: Plan) -> Plan | None:
    if not plan.expandable_segments:
        return replace(plan, expandable_segments=True)
    return None if plan.fused_optimizer else replace(plan, fused_optimizer=True)


def _buckets(plan: Plan) -> Plan | None:
    smaller = next((size for size in _BUCKETS if size < plan.bucket_elements), None)
    return replace(plan, bucket_elements=smaller) if smaller else None


def _checkpointing(plan: Plan) -> Plan | None:
    if plan.checkpointing == FULL:
        return None
    return replace(plan, checkpointing=SELECTIVE if plan.checkpointing < SELECTIVE else FULL)


def _micro_batch(plan: Plan) -> Plan | None:
    smaller = [size for size in divisors(plan.micro_batch * plan.accumulation) if size < plan.micro_batch]
    return plan.with_micro_batch(smaller[-1]) if smaller else None


def _sharding(plan: Plan) -> Plan | None:
    below = _NEXT_SHARDING.get(plan.sharding)
    return replace(plan, sharding=below) if below else None


def _offload(plan: Plan) -> Plan | None:
    if plan.sharding is Sharding.DDP or plan.offloads_weights:
        return None
    if plan.offload is not Offload.OPTIMIZER and plan.sharding.backend == "deepspeed":
        return replace(plan, offload=Offload.OPTIMIZER)
    # Only sharded parameters can be offloaded; with states on the host, the stage above costs nothing.
    sharding = plan.sharding if plan.sharding.zero_stage == 3 else Sharding.ZERO_3
    return replace(plan, sharding=sharding, offload=Offload.PARAMETERS)


def _optimizer_8bit(plan: Plan) -> Plan | None:
    return replace(plan, optimizer=Optimizer.ADAMW_8BIT) if plan.optimizer is Optimizer.ADAMW else None


def _gradient_dtype(plan: Plan) -> Plan | None:
    if plan.gradient_dtype is GradientDtype.MODEL:
        return None
    return replace(plan, gradient_dtype=GradientDtype.MODEL)


def _precision(narrow: Precision) -> Callable[[Plan], Plan | None]:
    def down(plan: Plan) -> Plan | None:
        wide = plan.compute_bytes == 4
        return replace(plan, precision=narrow) if wide else None

    return down


_ANY = frozenset(
    {OutOfMemoryKind.FRAGMENTATION, OutOfMemoryKind.ACTIVATION, OutOfMemoryKind.STATE, OutOfMemoryKind.OUTSIDE}
)
# Fewer activations do not shrink states, and neither shrinks what is outside the allocator; but what the allocator
# gives back is room for the outside.
_NOT_STATE = _ANY - {OutOfMemoryKind.STATE}

RUNGS = (
    Rung("allocator", _allocator, _ANY),
    Rung("buckets", _buckets, _ANY),
    Rung("checkpointing", _checkpointing, _NOT_STATE),
    Rung("micro-batch", _micro_batch, _NOT_STATE),
    Rung("sharding", _sharding, _ANY),
    Rung("offload", _offload, _ANY, costly=True),
    Rung("optimizer-8bit", _optimizer_8bit, _ANY, consent="optimizer-8bit", costly=True),
    Rung("gradient-dtype", _gradient_dtype, _ANY, consent="gradient-dtype", costly=True),
    Rung("precision", _precision(Precision.BF16), _ANY, consent="precision", costly=True),
    # Only GPUs without bf16 get here: they reject the rung above.
    Rung("precision", _precision(Precision.FP16), _ANY, consent="precision", costly=True),
)

# The rung that changes a knob.
RUNG_OF = {
    "expandable_segments": "allocator",
    "fused_optimizer": "allocator",
    "max_split_size_mib": "allocator",
    "bucket_elements": "buckets",
    "checkpointing": "checkpointing",
    "micro_batch": "micro-batch",
    "sharding": "sharding",
    "offload": "offload",
    "optimizer": "optimizer-8bit",
    "gradient_dtype": "gradient-dtype",
    "precision": "precision",
}
