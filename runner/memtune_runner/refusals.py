"""Plans that no backend of the engine can carry out, and why. This module imports no torch."""

from __future__ import annotations

from memtune.knobs import GradientDtype, Offload, Optimizer, Precision
from memtune.plan import Plan
from memtune.report import Device

_WHOLE_MATRICES = (Optimizer.MUON, Optimizer.ADAFACTOR)
_HALF = (Precision.BF16, Precision.FP16, Precision.FP8)


class PlanError(ValueError):
    """This machine, or the library that a plan needs, cannot carry the plan out. The message says what would do."""


def refuse(plan: Plan, device: Device) -> None:
    """Raise PlanError with the reason, if there is one."""
    reason = _reason(plan, device)
    if reason is not None:
        raise PlanError(f"plan {plan}: {reason}")


def _reason(plan: Plan, device: Device) -> str | None:
    if device is Device.VIRTUAL and plan.offload is not Offload.NONE:
        return (
            f"offload {plan.offload} cannot be measured on a virtual GPU: what is on the GPU and what is on the host "
            "are CPU tensors alike there; use device cuda, or a plan without offload"
        )
    if device is Device.VIRTUAL and plan.precision is Precision.FP8:
        return "a virtual GPU has no fp8; use bf16"
    if plan.sharding.backend != "deepspeed":
        return None
    if plan.sharding.zero_stage and plan.optimizer in _WHOLE_MATRICES:
        return f"{plan.optimizer} works on whole matrices, ZeRO hands it flat pieces; use z0, ddp or fsdp"
    if not plan.sharding.zero_stage and plan.gradient_dtype is GradientDtype.FP32 and plan.precision in _HALF:
        # deepspeed/runtime/engine.py, _do_optimizer_sanity_check: "unsupported mix"
        return (
            f"DeepSpeed keeps no fp32 gradients of {plan.precision} weights at stage 0; use z1 or gradientDtype model"
        )
    return None
