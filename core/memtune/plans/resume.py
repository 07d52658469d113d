"""Which checkpoint can be resumed under which plan: direct, after conversion, or impossible.

The table maps (format, from plan, to plan, same world?) to what the libraries really do: the contract tests save under
one plan and load under another. A combination that fails, or was never seen to work, is impossible. FSDP with offload
is tested on CUDA only. Checkpoints under NVMe were resumed by hand, on an emulated GPU. Untested, and assumed readable
by what wrote it: 8-bit AdamW of Trainer and accelerate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from memtune.plans.knobs import GradientDtype, Offload, Optimizer, Precision, Sharding
from memtune.plans.plan import Plan
from memtune.words import Word


class Format(Word):
    """The layout of a checkpoint, by the library or integration that wrote it."""

    DEEPSPEED = "deepspeed"
    UNIVERSAL = "universal"
    DCP = "dcp"
    HF_TRAINER = "hf-trainer"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    SCRIPT = "script"


def engine_format(plan: Plan) -> Format:
    """The format that the engine writes under this plan."""
    return Format.DEEPSPEED if plan.sharding.backend == "deepspeed" else Format.DCP


class Way(Word):
    """The cost of resuming: nothing, a conversion on the CPU, or it is impossible."""

    DIRECT = "direct"
    CONVERT = "convert"
    IMPOSSIBLE = "impossible"


class Resumption(NamedTuple):
    """One entry of the table, with the sentence that says why."""

    way: Way
    reason: str


def resumption(checkpoint_format: Format, saved: Plan, wanted: Plan, same_world: bool) -> Resumption:
    """How a checkpoint that was saved under one plan can be resumed under another."""
    if saved.optimizer is not wanted.optimizer:
        return _impossible(f"the states of {saved.optimizer} are not those of {wanted.optimizer}")
    return _TABLE[checkpoint_format](saved, wanted, same_world)


def resumable(checkpoint_format: Format, saved: Plan, wanted: Plan, same_world: bool) -> Plan | None:
    """The plan closest to the wanted one under which the checkpoint can be resumed; or None."""
    closer: list[dict[str, object]] = [{}]
    for name in ("sharding", "offload", "gradient_dtype", "optimizer", "precision"):
        closer.append({**closer[-1], name: getattr(saved, name)})
    for changes in closer:
        try:
            plan = replace(wanted, **changes)  # type: ignore[arg-type]  # each value is of the field of its name
        except ValueError:
            continue  # this sharding has no such offload
        if resumption(checkpoint_format, saved, plan, same_world).way is not Way.IMPOSSIBLE:
            return plan
    return None


def _other_weights(saved: Plan, wanted: Plan) -> Resumption | None:
    """DeepSpeed keeps weights in compute precision; torch's own sharding and autocast keep fp32."""
    before, after = _stored(saved.precision), _stored(wanted.precision)
    if before == after:
        return None
    return _impossible(f"its weights are {before}, and under {wanted.precision} they would be {after}")


def _stored(precision: Precision) -> str:
    """The number format of the weights; fp8 and tf32 only exist inside matrix products."""
    return {Precision.FP8: "bf16", Precision.TF32: "fp32"}.get(precision, precision.value)


def _deepspeed(saved: Plan, wanted: Plan, same_world: bool) -> Resumption:
    """DeepSpeed's shards: direct for the same stage and world, others through a universal checkpoint."""
    if wanted.sharding.backend != "deepspeed":
        return _impossible(f"only DeepSpeed reads DeepSpeed's shards, not {wanted.sharding}")
    if other_weights := _other_weights(saved, wanted):
        return other_weights
    if Sharding.ZERO_0 in (saved.sharding, wanted.sharding):
        return _without_zero(saved, wanted)
    if Offload.NVME in (saved.offload, wanted.offload):
        return _nvme(saved, wanted, same_world)
    if same_world and _shards(saved) == _shards(wanted):
        return _direct("DeepSpeed cuts the same shards under both plans")
    if saved.sharding.zero_stage == 3 and wanted.sharding.zero_stage < 3:
        return _impossible("what is made of stage 3's shards is read by stage 3 alone")
    if saved.optimizer is not Optimizer.ADAMW:
        return _impossible(f"a universal checkpoint holds the two moments of adamw; {saved.optimizer} has others")
    return Resumption(Way.CONVERT, "the shards are cut otherwise; a universal checkpoint holds whole tensors")


def _without_zero(saved: Plan, wanted: Plan) -> Resumption:
    if saved.sharding is wanted.sharding:
        return _direct("without ZeRO every rank holds everything")
    return _impossible("a universal checkpoint is made of ZeRO's shards, which stage 0 neither writes nor reads")


def _nvme(saved: Plan, wanted: Plan, same_world: bool) -> Resumption:
    if same_world and (saved.sharding, saved.offload) == (wanted.sharding, wanted.offload):
        return _direct("each rank finds its own files again")
    return _impossible("states on NVMe are saved as each rank's swap files, which no other layout reads")


def _shards(plan: Plan) -> tuple[object, ...]:
    """The choices that determine DeepSpeed's partitions. Stages 1 and 2 are alike; bf16 stage 1 with fp32 gradients
    differs.
    """
    is_stage_3 = plan.sharding.zero_stage == 3
    has_own = (
        plan.sharding is Sharding.ZERO_1
        and plan.gradient_dtype is GradientDtype.FP32
        and _stored(plan.precision) == "bf16"
        and plan.offload in (Offload.NONE, Offload.ACTIVATIONS)
    )
    return is_stage_3, has_own


def _universal(saved: Plan, wanted: Plan, _same_world: bool) -> Resumption:
    """A converted checkpoint is not converted again."""
    entry = _deepspeed(saved, wanted, same_world=False)
    return entry if entry.way is Way.IMPOSSIBLE else _direct("whole tensors are resharded for each stage and world")


def _dcp(saved: Plan, wanted: Plan, _same_world: bool) -> Resumption:
    """torch's distributed checkpoint: whole tensors by name, resharded on load."""
    if wanted.sharding.backend == "deepspeed":
        return _impossible(f"DeepSpeed ({wanted.sharding}) does not read torch's distributed checkpoints")
    if wanted.optimizer is Optimizer.ADAMW_8BIT and saved.sharding.backend != wanted.sharding.backend:
        return _impossible(
            "8-bit states are torchao's under FSDP, and bitsandbytes' under DDP where the image has it; neither "
            "reads the other's"
        )
    return _direct("torch reshards a distributed checkpoint for any sharding and world")


def _integration(saved: Plan, wanted: Plan, same_world: bool) -> Resumption:
    """These libraries write what the engine behind them writes."""
    before, after = saved.sharding.backend, wanted.sharding.backend
    if before != after:
        return _impossible(f"it was written through {before}, whose files {after} does not read")
    if before == "deepspeed":
        return _deepspeed(saved, wanted, same_world)
    return _direct(f"{before} reads its own files in any world")


def _script(saved: Plan, wanted: Plan, same_world: bool) -> Resumption:
    """A script's own checkpoint: only the plan that wrote it is known."""
    if other_weights := _other_weights(saved, wanted):
        return other_weights
    if saved.sharding is Sharding.DDP and wanted.sharding is Sharding.DDP:
        return _direct("every rank holds everything")
    differences = {
        "under another sharding": saved.sharding is not wanted.sharding,
        "with another offload": saved.offload is not wanted.offload,
        "on another number of GPUs": not same_world,
    }
    found = [words for words, is_so in differences.items() if is_so]
    if not found:
        return _direct("the script finds the shards that it saved")
    return _impossible(f"only the script knows what is in its own checkpoint, which it saved {' and '.join(found)}")


def _direct(reason: str) -> Resumption:
    return Resumption(Way.DIRECT, reason)


def _impossible(reason: str) -> Resumption:
    return Resumption(Way.IMPOSSIBLE, reason)


_TABLE: dict[Format, Callable[[Plan, Plan, bool], Resumption]] = {
    Format.DEEPSPEED: _deepspeed,
    Format.UNIVERSAL: _universal,
    Format.DCP: _dcp,
    Format.HF_TRAINER: _integration,
    Format.ACCELERATE: _integration,
    Format.LIGHTNING: _integration,
    Format.SCRIPT: _script,
}
