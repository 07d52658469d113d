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


def offload_refusal(plan: Plan, device: Device) -> str | None:
    """Why what a plan offloads cannot be measured on this device; None if it can, or if it offloads nothing."""
    if device is not Device.VIRTUAL or plan.offload is Offload.NONE:
        return None
    return (
        f"offload {plan.offload} cannot be measured on a virtual GPU: what is on the GPU and what is on the host "
        "are CPU tensors alike there; use device cuda, or a plan without offload"
    )


def _reason(plan: Plan, device: Device) -> str | None:
    if device is Device.VIRTUAL and plan.precision is Precision.FP8:
        return "a virtual GPU has no fp8; use bf16"
    return offload_refusal(plan, device) or deepspeed_refusal(plan) or fsdp_refusal(plan)
