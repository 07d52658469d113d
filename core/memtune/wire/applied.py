"""Compares what a script really did with its plan, since a measurement of another plan is invalid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from memtune.plans.knobs import Attention, GradientDtype, Precision, Sharding
from memtune.plans.plan import Plan
from memtune.wire.report import Applied

# Fields that a script's own batch decides.
BATCH_FIELDS = ("microBatch", "microSteps", "samplesPerStep")
# Fields that the script decides, unless its job opens the knob.
OPENED_FIELDS = ("optimizer", "attention", "fusedLoss")
# A probe's shortened step has this many micro-batches: enough to hold accumulated gradients.
SHORTENED_ACCUMULATION = 2

_DTYPES = {
    Precision.FP8: "bfloat16",
    Precision.BF16: "bfloat16",
    Precision.FP16: "float16",
    Precision.TF32: "float32",
    Precision.FP32: "float32",
}


class _Field(NamedTuple):
    """One comparison: the report's field, the values that the plan allows, and the remedy per integration.

    Integrations without their own remedy use that of ``env``. A field is left out if it differs only because one in
    ``implied_by`` does.
    """

    name: str
    seen: Callable[[Applied], object]
    allowed: Callable[[Plan, int, bool], tuple[object, ...]]
    remedies: Mapping[str, str]
    implied_by: tuple[str, ...] = ()


class _Difference(NamedTuple):
    """One field in which a run differs from its plan."""

    name: str
    seen: object
    asked: str
    remedy: str


def shortened_accumulation(plan: Plan) -> int:
    """The micro-batches of one optimizer step of a probe."""
    return min(plan.accumulation, SHORTENED_ACCUMULATION)


def difference(
    plan: Plan, applied: Applied, world: int, is_probe: bool, integration: str, opened: Collection[str] = ()
) -> str:
    """One sentence about every difference between a run and its plan; empty if there is none.

    If a script keeps its own batch, both batches come first, since the message of a run is cut. ``opened`` is as in
    `mismatch`.
    """
    own = own_batch(plan, applied, world, is_probe) if integration == "env" else ""
    without = BATCH_FIELDS if own else ()
    found = mismatch(plan, applied, world, is_probe, integration=integration, without=without, opened=opened)
    return "; ".join(filter(None, (own, found)))


def own_batch(plan: Plan, applied: Applied, world: int, is_probe: bool) -> str:
    """The script's batch, the job's, and where to change each; empty if the plan's batch was observed.

    It is short, since the message of a run is cut.
    """
    seen, wanted, size = applied.samples_per_step, plan.global_batch(world), applied.micro_batch
    # A probe may be shortened.
    shortened = plan.micro_batch * world * shortened_accumulation(plan) if is_probe else wanted
    if seen is not None and seen not in (wanted, shortened):
        own = f", tuning.space.microBatch [{size}]" if size else ""
        return (
            f"the script's batch is {seen}, training.globalBatchSize {wanted}: read $MEMTUNE_MICRO_BATCH and "
            f"$MEMTUNE_ACCUMULATION, or set globalBatchSize {seen}{own}"
        )
    if size is not None and size != plan.micro_batch:
        return (
            f"applied.microBatch is {size}, but the plan asks for {plan.micro_batch}: read $MEMTUNE_MICRO_BATCH in the "
            f"script, or set tuning.space.microBatch [{size}]"
        )
    return ""


def mismatch(
    plan: Plan,
    applied: Applied,
    world: int,
    is_probe: bool,
    *,
    integration: str = "env",
    without: Collection[str] = (),
    opened: Collection[str] = (),
) -> str:
    """One sentence about all fields in which a run differs from its plan, except those ``without``; or empty.

    The remedies are the integration's. Fields that were not observed because the run ended earlier do not count.
    ``opened`` are those of `OPENED_FIELDS` that the job leaves to its plans.
    """
    found: list[_Difference] = []
    for field in _FIELDS:
        if field.name in OPENED_FIELDS and field.name not in opened:
            continue
        seen, allowed = field.seen(applied), field.allowed(plan, world, is_probe)
        is_implied = any(each.name in field.implied_by for each in found)
        if seen is not None and seen not in allowed and not is_implied:
            asked = " or ".join(str(each) for each in allowed)
            found.append(_Difference(field.name, seen, asked, _remedy(field, applied, plan, integration)))
    found += _checkpointing_difference(plan, applied, integration)
    found = [each for each in found if each.name not in without]
    if not found:
        return ""
    first, *others = found
    parts = [f"applied.{first.name} is {first.seen}, but plan {plan} asks for {first.asked}"]
    parts += [f"applied.{each.name} is {each.seen}, not {each.asked}" for each in others]
    return f"{', '.join(parts)}: {'; '.join(dict.fromkeys(each.remedy for each in found))}"


def _remedy(field: _Field, applied: Applied, plan: Plan, integration: str) -> str:
    """The remedy for one field. If the batch size is right but there are too few, the epoch may be short."""
    remedy = field.remedies.get(integration, field.remedies["env"])
    is_short = field.name == "microSteps" and (applied.micro_steps or 0) < plan.accumulation
    if is_short and applied.micro_batch in (None, plan.micro_batch):
        return f"if the epoch is shorter than globalBatchSize, lower that; else {remedy}"
    return remedy


def _checkpointing_difference(plan: Plan, applied: Applied, integration: str) -> list[_Difference]:
    """Compare checkpointed blocks: only the model knows their number, but the plan knows if there are any."""
    blocks, wanted = applied.checkpointed_blocks, plan.checkpointing.mode != "none"
    if blocks is None or wanted == bool(blocks):
        return []
    remedy = _NOT_CHECKPOINTED[integration == "env"] if wanted else _CHECKPOINTED
    return [_Difference("checkpointedBlocks", blocks, f"checkpointing {plan.checkpointing}", remedy)]


def _backends(plan: Plan, world: int, _: bool) -> tuple[object, ...]:
    # On one rank a data-parallel wrapper does nothing, and most scripts leave it out.
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
    """DeepSpeed keeps master weights apart; elsewhere autocast keeps fp32 weights, and a script may cast them."""
    dtype = _DTYPES[plan.precision]
    return (dtype,) if plan.sharding.backend == "deepspeed" else tuple(dict.fromkeys(("float32", dtype)))


def _gradient_dtypes(plan: Plan, world: int, is_probe: bool) -> tuple[object, ...]:
    if plan.gradient_dtype is GradientDtype.FP32:
        return ("float32",)
    return _weight_dtypes(plan, world, is_probe)


def _expandable(plan: Plan, _: int, is_probe: bool) -> tuple[object, ...]:
    # A script that switches them on by itself has them under every plan, so that plans stay comparable. A training
    # without them is not ended, since it may still fit.
    return (True,) if plan.expandable_segments and is_probe else (False, True)


def _attentions(plan: Plan, _: int, __: bool) -> tuple[object, ...]:
    # torch's sdpa takes its flash kernel by itself.
    return ("eager",) if plan.attention is Attention.EAGER else ("flash", "sdpa")


_CHECKPOINTED = (
    "switch the script's own checkpointing off; a loss that checkpoints its parts says so with "
    "memtune_runner.loss_in_parts"
)
_NOT_CHECKPOINTED = {
    True: "switch the script's own checkpointing on",
    False: (
        "the runner switches it on in the model that it is given; train that one, or leave only plans without "
        "checkpointing in the space with tuning.space.checkpointing [none]"
    ),
}
_BATCH = {
    "env": "the script must take it from $MEMTUNE_MICRO_BATCH, or use an integration that sets it",
    "hf-trainer": "leave the training data loader to the Trainer",
    "accelerate": "let torch's own BatchSampler make the batches of the loader that accelerator.prepare is given",
    "lightning": "let torch's own BatchSampler make the batches of the training loader",
    "sdk": "give the engine what engine.micro_batches(batch) yields",
}
_STEPS = {
    "env": "the script must take it from $MEMTUNE_ACCUMULATION, or use an integration that sets it",
    "hf-trainer": "leave the training loop to the Trainer",
    "accelerate": (
        "train each batch within accelerator.accumulate(model), or $MEMTUNE_ACCUMULATION of them a step, or set "
        "tuning.space.microBatch"
    ),
    "lightning": (
        "leave the training loop to Lightning's Trainer; under Fabric, accumulate $MEMTUNE_ACCUMULATION micro-batches"
    ),
    "sdk": "call engine.step() once for each global batch",
}
_SAMPLES = {"env": "each rank must train on its own samples"}
_ENGINE = {
    "env": "the script must wrap its model as the plan says, or use an integration that does",
    "hf-trainer": "leave DeepSpeed, FSDP and DDP to the Trainer",
    "accelerate": "train the model that accelerator.prepare returns, and wrap it in nothing else",
    "lightning": "leave DeepSpeed, FSDP and DDP to Lightning, or train the model that fabric.setup returns",
    "sdk": "train through the engine, and wrap the model in nothing else",
}
_NO_CAST = "the script must neither cast the model nor open an autocast of its own"
_DTYPE = {
    "env": "the script must take the precision from $MEMTUNE_PLAN, use an integration that sets it, or have its own as "
    "the only tuning.space.precision",
    "hf-trainer": _NO_CAST,
    "accelerate": _NO_CAST,
    "lightning": _NO_CAST,
    "sdk": _NO_CAST,
}
_ALLOCATOR = {"env": "the script must set neither PYTORCH_ALLOC_CONF nor PYTORCH_CUDA_ALLOC_CONF by itself"}
_OPTIMIZER = {
    "env": "the script must take it from $MEMTUNE_PLAN, or leave tuning.space.optimizer out",
    "hf-trainer": "leave the optimizer to the Trainer, or leave tuning.space.optimizer out",
    "sdk": "give initialize no optimizer=, or leave tuning.space.optimizer out",
}
_ATTENTION = {"env": "the model has an attention of its own; leave tuning.space.attention out"}
_LOSS = {"env": "compute the loss by engine(micro), or leave tuning.space.fusedLoss out"}
_FIELDS = (
    _Field("backend", lambda a: a.backend, _backends, _ENGINE),
    _Field("zeroStage", lambda a: a.zero_stage, lambda p, _, __: (p.sharding.zero_stage,), _ENGINE, ("backend",)),
    _Field("sharding", lambda a: a.sharding, lambda p, _, __: (p.sharding.value,), _ENGINE, ("backend",)),
    _Field("microBatch", lambda a: a.micro_batch, lambda p, _, __: (p.micro_batch,), _BATCH),
    _Field("microSteps", lambda a: a.micro_steps, _micro_steps, _STEPS),
    _Field("samplesPerStep", lambda a: a.samples_per_step, _samples, _SAMPLES, ("microBatch", "microSteps")),
    _Field("computeDtype", lambda a: a.compute_dtype, _compute_dtypes, _DTYPE),
    _Field("weightDtype", lambda a: a.weight_dtype, _weight_dtypes, _DTYPE),
    _Field("gradientDtype", lambda a: a.gradient_dtype, _gradient_dtypes, _DTYPE),
    _Field("expandableSegments", lambda a: a.expandable_segments, _expandable, _ALLOCATOR),
    _Field("optimizer", lambda a: a.optimizer, lambda p, _, __: (p.optimizer.value,), _OPTIMIZER),
    _Field("attention", lambda a: a.attention, _attentions, _ATTENTION),
    _Field("fusedLoss", lambda a: a.fused_loss, lambda p, _, __: (p.fused_loss,), _LOSS),
)
