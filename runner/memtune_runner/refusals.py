"""Plans that no backend of the engine can carry out, and why. This module imports no torch."""

from __future__ import annotations

from memtune.deepspeed_config import deepspeed_refusal
from memtune.fsdp_config import fsdp_refusal
from memtune.knobs import Offload, Precision
from memtune.plan import Plan
from memtune.report import Device


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
    return deepspeed_refusal(plan) or fsdp_refusal(plan)
