"""Compares what a script really did with the plan it was given. A measurement of another plan is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from memtune.knobs import GradientDtype, Precision, Sharding
from memtune.plan import Plan
from memtune.report import Applied

# A shortened step of a probe has this many micro-batches: enough to hold accumulated gradients.
SHORTENED_ACCUMULATION = 2

_DTYPES = {
    Precision.FP8: "bfloat16",
    Precision.BF16: "bfloat16",
    Precision.FP16: "float16",
    Precision.TF32: "float32",
    Precision.FP32: "float32",
}


class _Field(NamedTuple):
    """One comparison: the report's field, the values that the plan allows, and where a script takes them from."""

    name: str
    seen: Callable[[Applied], object]
    allowed: Callable[[Plan, int, bool], tuple[object, ...]]
    remedy: str


def shortened_accumulation(plan: Plan) -> int:
    """The micro-batches of one optimizer step of a probe."""
    return min(plan.accumulation, SHORTENED_ACCUMULATION)


def mismatch(plan: Plan, applied: Applied, world: int, is_probe: bool, *, by_script: bool = True) -> str:
    """One sentence about the first field in which a run differs from its plan; empty where none does.

    ``by_script`` tells whether the script carries the plan out; else the runner does that for the script's model.
    What was not seen, because the run ended before, is not held against it.
    """
    for field in _FIELDS:
        seen, allowed = field.seen(applied), field.allowed(plan, world, is_probe)
        if seen is not None and seen not in allowed:
            choices = " or ".join(str(each) for each in allowed)
            return f"applied.{field.name} is {seen}, but plan {plan} asks for {choices}: {field.remedy}"
    checkpointing = _checkpointing_mismatch(plan, applied, by_script)
    return f"applied.checkpointedBlocks is {applied.checkpointed_blocks}, but {checkpointing}" if checkpointing else ""


def _checkpointing_mismatch(plan: Plan, applied: Applied, by_script: bool) -> str:
    """How many blocks there are only the model knows; that some are checkpointed, or none, the plan knows."""
    wanted = plan.checkpointing.mode != "none"
    if applied.checkpointed_blocks is None or wanted == bool(applied.checkpointed_blocks):
        return ""
    remedy = _NOT_CHECKPOINTED[by_script] if wanted else "switch the script's own checkpointing off"
    return f"plan {plan} asks for checkpointing {plan.checkpointing}: {remedy}"


def _backends(plan: Plan, world: int, _: bool) -> tuple[object, ...]:
    # Over one rank a wrapper for data parallelism does nothing, and most scripts leave it out.
    alone = world == 1 and plan.sharding is Sharding.DDP
    return (plan.sharding.backend, "none") if alone else (plan.sharding.backend,)


def _micro_steps(plan: Plan, _: int, is_probe: bool) -> tuple[int, ...]:
    counts = (shortened_accumulation(plan), plan.accumulation) if is_probe else (plan.accumulation,)
    return tuple(dict.fromkeys(counts))


def _samples(plan: Plan, world: int, is_probe: bool) -> tuple[object, ...]:
    return tuple(plan.micro_batch * world * steps for steps in _micro_steps(plan, world, is_probe))


def _compute_dtypes(plan: Plan, _: int, __: bool) -> tuple[object, ...]:
    return ("float8",) if plan.precision is Precision.FP8 else (_DTYPES[plan.precision],)


def _weight_dtypes(plan: Plan, _: int, __: bool) -> tuple[object, ...]:
    """DeepSpeed keeps its masters apart; elsewhere autocast leaves fp32 weights, and a script may cast them itself."""
    dtype = _DTYPES[plan.precision]
    return (dtype,) if plan.sharding.backend == "deepspeed" else tuple(dict.fromkeys(("float32", dtype)))


def _gradient_dtypes(plan: Plan, world: int, is_probe: bool) -> tuple[object, ...]:
    if plan.gradient_dtype is GradientDtype.FP32:
        return ("float32",)
    return _weight_dtypes(plan, world, is_probe)


_BATCH = "the script must take it from $MEMTUNE_MICRO_BATCH, or use an integration that sets it"
_STEPS = "the script must take it from $MEMTUNE_ACCUMULATION, or use an integration that sets it"
_ENGINE = "the script must wrap its model as the plan says, or use an integration that does"
_DTYPE = "the script must take the precision from $MEMTUNE_PLAN, or use an integration that sets it"
_NOT_CHECKPOINTED = {
    True: "switch the script's own checkpointing on",
    False: (
        "the runner switches it on in the model that it is given; train that one, or leave only plans without "
        "checkpointing in the space with tuning.space.checkpointing [none]"
    ),
}
_FIELDS = (
    _Field("backend", lambda a: a.backend, _backends, _ENGINE),
    _Field("zeroStage", lambda a: a.zero_stage, lambda p, _, __: (p.sharding.zero_stage,), _ENGINE),
    _Field("microBatch", lambda a: a.micro_batch, lambda p, _, __: (p.micro_batch,), _BATCH),
    _Field("microSteps", lambda a: a.micro_steps, _micro_steps, _STEPS),
    _Field("samplesPerStep", lambda a: a.samples_per_step, _samples, "each rank must train on its own samples"),
    _Field("computeDtype", lambda a: a.compute_dtype, _compute_dtypes, _DTYPE),
    _Field("weightDtype", lambda a: a.weight_dtype, _weight_dtypes, _DTYPE),
    _Field("gradientDtype", lambda a: a.gradient_dtype, _gradient_dtypes, _DTYPE),
)
