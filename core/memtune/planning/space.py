"""The search space: which plans a job allows, which can fit, and which is predicted fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from memtune.memory.formulas.shape import shape_of
from memtune.memory.host_memory import kept_activation_bytes, offloaded_bytes
from memtune.memory.prediction import Prediction, PredictsPlans, percent
from memtune.memory.workload import Workload
from memtune.plans.deepspeed_config import NVME_BUFFER_ELEMENTS
from memtune.plans.knobs import (
    FULL,
    NO_CHECKPOINTING,
    SELECTIVE,
    Attention,
    Checkpointing,
    GradientDtype,
    Offload,
    Optimizer,
    Precision,
    Sharding,
)
from memtune.plans.plan import Plan
from memtune.plans.refusals import contradiction, gpu_refusal, has_flash, virtual_refusal
from memtune.units import amount, counted

THROUGHPUT = "throughput"
MEMORY = "memory"
BOTH = "both"  # the front of throughput and memory


@dataclass(frozen=True)
class Space:
    """The choices a job allows for each knob, in every combination with every micro-batch.

    ``micro_batches`` are the only ones that its script can use; empty means any. ``opened`` has the knobs of numerics
    that tuning names, in the place of training or the script: to name them is the consent to change them.
    """

    precisions: tuple[Precision, ...] = (Precision.BF16,)
    shardings: tuple[Sharding, ...] = (
        Sharding.ZERO_0,
        Sharding.ZERO_1,
        Sharding.ZERO_2,
        Sharding.ZERO_3,
        Sharding.FSDP,
    )
    checkpointings: tuple[Checkpointing, ...] = (NO_CHECKPOINTING, SELECTIVE, FULL)
    offloads: tuple[Offload, ...] = (Offload.NONE,)
    optimizers: tuple[Optimizer, ...] = (Optimizer.ADAMW,)
    gradient_dtypes: tuple[GradientDtype, ...] = (GradientDtype.MODEL,)
    attentions: tuple[Attention, ...] = (Attention.FLASH,)
    fused_losses: tuple[bool, ...] = (False,)
    expandable_segments: tuple[bool, ...] = (False,)
    micro_batches: tuple[int, ...] = ()
    opened: frozenset[str] = frozenset()

    def completed(self, plan: Plan) -> Plan:
        """Fill in what a plan's short form leaves out, for knobs with a single choice in this space."""
        choices: dict[str, tuple[Any, ...]] = {
            "optimizer": self.optimizers,
            "gradient_dtype": self.gradient_dtypes,
            "attention": self.attentions,
            "fused_loss": self.fused_losses,
            "expandable_segments": self.expandable_segments,
        }
        pinned = {
            name: found[0]
            for name, found in choices.items()
            if len(found) == 1 and getattr(plan, name) == getattr(Plan, name)
        }
        whole = replace(plan, **pinned)
        if plan.offload is not Offload.NONE or len(self.offloads) != 1:
            return whole
        try:
            offloading = replace(whole, offload=self.offloads[0])
        except ValueError:
            return whole  # not possible with every sharding
        return whole if contradiction(offloading) else offloading

    def has(self, plan: Plan) -> bool:
        """Whether the space has the plan's values of all knobs that keep numerics; consent may change the others."""
        return (
            plan.sharding in self.shardings
            and plan.checkpointing in self.checkpointings
            and plan.offload in self.offloads
            and (not self.micro_batches or plan.micro_batch in self.micro_batches)
        )

    def allows(self, plan: Plan) -> bool:
        """Whether the space has the plan's values of all knobs that a job may open."""
        return (
            self.has(plan)
            and plan.precision in self.precisions
            and plan.optimizer in self.optimizers
            and plan.attention in self.attentions
            and plan.fused_loss in self.fused_losses
            and plan.expandable_segments in self.expandable_segments
        )

    def sizes(self, samples: int) -> list[int]:
        """The micro-batches that divide a rank's samples of a step, smallest first."""
        return [size for size in divisors(samples) if not self.micro_batches or size in self.micro_batches]

    def bare_plans(self) -> Iterator[Plan]:
        """Every valid combination, at micro-batch 1 of 1."""
        choices = product(
            self.precisions,
            self.shardings,
            self.checkpointings,
            self.offloads,
            self.optimizers,
            self.gradient_dtypes,
            self.attentions,
            self.fused_losses,
            self.expandable_segments,
        )
        return (plan for choice in choices if (plan := _plan_or_none(choice)) and not self._repeats(plan))

    def _repeats(self, plan: Plan) -> bool:
        """Whether another plan of the space runs the same kernel: torch's sdpa takes its flash kernel where it can."""
        return plan.attention is Attention.SDPA and Attention.FLASH in self.attentions and has_flash(plan)


def _plan_or_none(choice: tuple[Any, ...]) -> Plan | None:
    precision, sharding, checkpointing, offload, optimizer, gradient_dtype, attention, fused_loss, expandable = choice
    try:
        return Plan(
            precision,
            sharding,
            checkpointing,
            micro_batch=1,
            accumulation=1,
            offload=offload,
            optimizer=optimizer,
            gradient_dtype=gradient_dtype,
            attention=attention,
            fused_loss=fused_loss,
            expandable_segments=expandable,
        )
    except ValueError:
        # The plan itself rejects knobs that exclude each other (DDP with offload, NVMe without shards).
        return None


def divisors(number: int) -> list[int]:
    """All divisors, smallest first."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def refusal(workload: Workload, plan: Plan) -> str | None:
    """Why this plan cannot or should not run for this workload, memory aside; None if it can."""
    of_device = virtual_refusal(plan) if workload.virtual else None
    return gpu_refusal(plan, workload.gpu) or of_device or contradiction(plan) or _nvme_refusal(workload, plan)


def _nvme_refusal(workload: Workload, plan: Plan) -> str | None:
    """Why DeepSpeed cannot keep the weights on NVMe: it reads a rank's part of a weight into a buffer of one size."""
    if plan.offload is not Offload.NVME:
        return None
    shape = shape_of(workload.model, workload.adapter)
    largest = max(shape.vocab * shape.hidden, shape.largest_linear)
    if -(-largest // workload.world) <= NVME_BUFFER_ELEMENTS:
        return None
    return (
        f"offload nvme: DeepSpeed's buffers take {NVME_BUFFER_ELEMENTS:,} elements of a weight, and the largest weight "
        f"has {largest:,}; that takes {-(-largest // NVME_BUFFER_ELEMENTS)} GPUs"
    )


def enumerate_plans(workload: Workload, space: Space) -> list[Plan]:
    """Every plan the job allows, in the order of the space's choices; empty if every combination is refused."""
    samples = workload.samples_per_rank
    sizes = space.sizes(samples)
    return [plan.for_samples(samples, size) for plan in _bare_plans(workload, space) for size in sizes]


def refusals(workload: Workload, space: Space) -> list[str]:
    """Each distinct reason for which a combination of the space was left out."""
    plans = list(space.bare_plans())
    reasons = [refusal(workload, plan) for plan in plans]
    alone = len(_bare_plans(workload, space)) < reasons.count(None)
    samples = workload.samples_per_rank
    undivided = [
        f"micro-batch {size} does not divide the {counted(samples, 'sequence')} of a GPU and a step"
        for size in sorted(set(space.micro_batches).difference(space.sizes(samples)))
    ]
    return sorted({reason for reason in reasons if reason}) + undivided + ([_ALONE] if alone else [])


_ALONE = "one GPU has no other to share states with, so the plainest sharding is enough"


def _bare_plans(workload: Workload, space: Space) -> list[Plan]:
    plans = [plan for plan in space.bare_plans() if refusal(workload, plan) is None]
    if workload.world > 1:
        return plans
    least: dict[Plan, Sharding] = {}
    for plan in plans:
        alike = _least_sharding(plan)
        least[alike] = min(least.get(alike, plan.sharding), plan.sharding)
    return [plan for plan in plans if plan.sharding is least[_least_sharding(plan)]]


def _least_sharding(plan: Plan) -> Plan:
    """The representative of all plans that differ only in sharding on one GPU."""
    if not plan.offloads_states:
        return replace(plan, sharding=Sharding.DDP)
    # The libraries differ in what they offload, and how.
    return replace(plan, sharding=Sharding.ZERO_3 if plan.sharding.backend == "deepspeed" else Sharding.FSDP)


def host_refusal(workload: Workload, predictor: PredictsPlans, plan: Plan) -> str | None:
    """Why a pod cannot hold what the plan offloads; None if it can, or if its limit or the model is unknown."""
    limit = workload.host_limit_bytes
    if plan.offload is Offload.NONE or not limit or workload.assumed:
        return None
    needed = offloaded_bytes(workload, plan, kept_activation_bytes(predictor, plan))
    if needed <= limit:
        return None
    needs, allowed = amount(needed, limit), amount(limit, limit)
    return f"needs {needs} of host memory for what it offloads; limits.memory of the template is {allowed}"


class Candidate(NamedTuple):
    """A plan with its prediction."""

    plan: Plan
    prediction: Prediction


class Dropped(NamedTuple):
    """A candidate that cannot be launched, and why."""

    plan: Plan
    prediction: Prediction
    reason: str


@dataclass(frozen=True)
class Ranking:
    """The candidates of a job, the best first in each group.

    ``fitting`` may be launched unmeasured. ``uncertain`` may fit, which only a probe can tell. ``dropped`` cannot fit.
    """

    fitting: tuple[Candidate, ...]
    uncertain: tuple[Dropped, ...]
    dropped: tuple[Dropped, ...]

    @property
    def likeliest(self) -> Dropped:
        """The plan that is expected to take the least memory, for a space where none is sure to fit."""
        return min(self.uncertain or self.dropped, key=_smallest)


def rank(
    workload: Workload,
    predictor: PredictsPlans,
    plans: Iterable[Plan],
    headroom: float,
    objective: str = THROUGHPUT,
) -> Ranking:
    """Group the plans by whether they fit, sorted by objective; those that cannot fit, by missing memory."""
    usable_bytes = workload.gpu.usable_bytes
    fitting: list[Candidate] = []
    uncertain: list[Dropped] = []
    dropped: list[Dropped] = []
    refused = _host_refusals(workload, predictor)
    for plan in plans:
        prediction = predictor.predict(plan)
        if prediction.cannot_fit(usable_bytes):
            dropped.append(Dropped(plan, prediction, _too_large(prediction, usable_bytes)))
        elif reason := refused(plan):
            dropped.append(Dropped(plan, prediction, reason))
        elif prediction.fits(usable_bytes, headroom):
            fitting.append(Candidate(plan, prediction))
        else:
            uncertain.append(Dropped(plan, prediction, _too_close(prediction, usable_bytes, headroom)))
    best_first = _smallest if objective == MEMORY else partial(_quickest, usable_bytes)
    return Ranking(
        tuple(sorted(fitting, key=best_first)),
        tuple(sorted(uncertain, key=best_first)),
        tuple(sorted(dropped, key=_smallest)),
    )


def _host_refusals(workload: Workload, predictor: PredictsPlans) -> Callable[[Plan], str | None]:
    """`host_refusal`, computed once per family: of the offloaded parts only activations depend on the batch."""
    known: dict[tuple[object, ...], str | None] = {}

    def refused(plan: Plan) -> str | None:
        if plan.offload in (Offload.NONE, Offload.ACTIVATIONS):
            return host_refusal(workload, predictor, plan)
        if plan.family not in known:
            known[plan.family] = host_refusal(workload, predictor, plan)
        return known[plan.family]

    return refused


# Sorting is stable: equals keep the order of the space, without a slow comparison of plans.
def _quickest(usable_bytes: int, candidate: Candidate | Dropped) -> tuple[float, float]:
    prediction = candidate.prediction
    return -prediction.speed(usable_bytes), prediction.device.expected


def _smallest(candidate: Candidate | Dropped) -> tuple[float, float]:
    prediction = candidate.prediction
    return prediction.device.expected, -prediction.tokens_per_second.expected


def _too_large(prediction: Prediction, usable_bytes: int) -> str:
    needed, usable = (amount(size, usable_bytes) for size in (prediction.needed.expected, usable_bytes))
    return f"needs {needed}, the GPU has {usable}"


def _too_close(prediction: Prediction, usable_bytes: int, headroom: float) -> str:
    lower, needed, upper, usable = (amount(size, usable_bytes) for size in (*prediction.needed, usable_bytes))
    chance = f"a probability of {percent(prediction.fit_probability(usable_bytes, headroom))}%: only a probe can tell"
    if prediction.needed.upper > usable_bytes:
        return f"needs {lower} to {upper}, the GPU has {usable}, and it fits with {chance}"
    return f"needs {needed}, of the GPU's {usable} {headroom:.0%} must stay free, and it fits with {chance}"
