"""Refuses plans that no backend of the engine can run. Imports no torch."""

from __future__ import annotations

from memtune.plans.deepspeed_config import deepspeed_refusal
from memtune.plans.fsdp_config import fsdp_refusal
from memtune.plans.plan import Plan
from memtune.plans.virtual_gpu import virtual_refusal
from memtune.wire.report import Device


class PlanError(ValueError):
    """This machine or a library that the plan needs cannot run it. The message says what would work."""


def refuse(plan: Plan, device: Device) -> None:
    """Raise PlanError if the plan cannot run on the device."""
    reason = _reason(plan, device)
    if reason is not None:
        raise PlanError(f"plan {plan}: {reason}")


def _reason(plan: Plan, device: Device) -> str | None:
    virtual = virtual_refusal(plan) if device is Device.VIRTUAL else None
    return virtual or deepspeed_refusal(plan) or fsdp_refusal(plan)
