"""Refuses plans that no backend of the engine can run. Imports no torch."""

from __future__ import annotations

from memtune.plans.plan import Plan
from memtune.plans.refusals import backend_refusal, virtual_refusal
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
    return virtual or backend_refusal(plan)
