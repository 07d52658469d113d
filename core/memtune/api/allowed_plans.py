"""Explains why the operator would not choose a given plan, neither at first nor after an out-of-memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memtune.api.job import Job
from memtune.api.workload import strategy_of
from memtune.planning.ladder import RUNG_OF, RUNGS, Rung
from memtune.plans.plan import Plan
from memtune.words import camel

# No field of a job speaks of these: plans begin with their defaults, and only the ladder leads elsewhere.
_UNSPOKEN = ("fused_optimizer", "bucket_elements", "max_split_size_mib")


def outside(job: Job, plan: Plan) -> list[str]:
    """A message for each knob of a plan that the job does not allow."""
    if fixed := job.spec.tuning.fixed_plan:
        return [] if plan == fixed else [f"tuning.mode Fixed launches {fixed}"]
    space, training = job.spec.tuning.space, job.spec.training
    found = [
        _of_ladder(job, plan, "precision", "tuning.space.precision", space.precision),
        _sharding(job, plan),
        _of_space(f"checkpointing {plan.checkpointing}", plan.checkpointing, "checkpointing", space.checkpointing),
        _of_space(f"offload {plan.offload}", plan.offload, "offload", space.offload),
        _micro_batch(plan, space.micro_batch),
        _of_training(job, plan, "optimizer", space.optimizer, training.optimizer),
        _of_ladder(job, plan, "gradient_dtype", "training.gradientDtype", (training.gradient_dtype,)),
        _of_training(job, plan, "attention", space.attention, training.attention),
        _flag(plan, "fused_loss", space.fused_loss),
        _flag(plan, "expandable_segments", space.expandable_segments),
        *(_unspoken(plan, knob) for knob in _UNSPOKEN),
    ]
    return [reason for reason in found if reason]


def _micro_batch(plan: Plan, allowed: Sequence[int] | None) -> str:
    size = plan.micro_batch
    return _of_space(f"micro-batch {size}", size, "microBatch", allowed) if allowed else ""


def _of_training(job: Job, plan: Plan, knob: str, opened: Sequence[object] | None, given: object) -> str:
    """A knob that training decides, if the space does not open it."""
    field = f"training.{knob}" if opened is None else f"tuning.space.{knob}"
    return _of_ladder(job, plan, knob, field, opened or (given,))


def _flag(plan: Plan, knob: str, allowed: Sequence[bool]) -> str:
    """A choice that the space does not have, and to which the ladder does not lead."""
    value, field = getattr(plan, knob), camel(knob)
    if value in allowed or _leading_to(plan, knob, allowed):
        return ""
    shown = [str(choice).lower() for choice in allowed]
    return _not_among(f"{field} {str(value).lower()}", f"tuning.space.{field}", shown)


def _sharding(job: Job, plan: Plan) -> str:
    space, sharding = job.spec.tuning.space, plan.sharding
    backend, stage = sharding.backend, sharding.zero_stage
    if backend not in space.backends:
        return _of_space(f"sharding {sharding} (backend {backend})", backend, "backends", space.backends)
    if backend == "deepspeed":
        return _of_space(f"sharding {sharding} (ZeRO stage {stage})", stage, "zeroStages", space.zero_stages)
    if backend == "fsdp":
        strategy = strategy_of(sharding)
        said = f"sharding {sharding} (strategy {strategy})"
        return _of_space(said, strategy, "fsdpStrategies", space.fsdp_strategies)
    return ""


def _of_space(said: str, value: object, field: str, allowed: Sequence[object]) -> str:
    return "" if str(value) in map(str, allowed) else _not_among(said, f"tuning.space.{field}", allowed)


def _not_among(said: str, field: str, allowed: Sequence[object]) -> str:
    return f"{said} is not among {field} [{', '.join(map(str, allowed))}]"


def _of_ladder(job: Job, plan: Plan, knob: str, field: str, allowed: Sequence[object]) -> str:
    """A knob that the ladder may also change, if the job consents."""
    value, consent = getattr(plan, knob), job.spec.retry.consent
    rungs = _leading_to(plan, knob, allowed)
    if value in allowed or any(rung.consent in consent for rung in rungs):
        return ""
    missing = f", and retry.consent has no {rungs[0].consent}" if rungs else ""
    return _not_among(f"{camel(knob)} {value}", field, allowed) + missing


def _unspoken(plan: Plan, knob: str) -> str:
    value, usual = getattr(plan, knob), getattr(Plan, knob)
    if value == usual or _leading_to(plan, knob, [usual]):
        return ""
    return f"{camel(knob)} {str(value).lower()} is for tuning.mode Fixed alone"


def _leading_to(plan: Plan, knob: str, starts: Sequence[Any]) -> list[Rung]:
    """The rungs that lead from one of a knob's choices to the plan's value."""
    value = getattr(plan, knob)
    return [
        rung
        for rung in RUNGS
        if rung.name == RUNG_OF.get(knob)
        for start in starts
        if any(getattr(option, knob) == value for option in rung.options(replace(plan, **{knob: start})))
    ]
