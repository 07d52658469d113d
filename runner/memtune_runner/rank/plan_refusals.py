"""Plans that no backend of the engine can carry out, and why. This module imports no torch."""

from __future__ import annotations

from memtune.plans.plan import Plan
from memtune.plans.refusals import backend_refusal, virtual_refusal
from memtune.wire.report import Device


class PlanError(ValueError):
    """This machine, or the library that a plan needs, cannot carry the plan out. The message says what would do."""


def refuse(plan: Plan, device: Device) -> None:
    """Raise PlanError with the reason, if there is one."""
    reason = _reason(plan, device)
    if reason is not None:
        raise PlanError(f"plan {plan}: {reason}")


def _reason(plan: Plan, device: Device) -> str | None:
    virtual = virtual_refusal(plan) if device is Device.VIRTUAL else None
    return virtual or backend_refusal(plan)
