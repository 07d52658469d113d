"""A suspended job: its pods stop, and what was learned is kept until it is resumed."""

from __future__ import annotations

from memtune.api import reasons
from memtune.controller.context import Context
from memtune.controller.fold_observations import all_stopped
from memtune.controller.job_end import no_longer_waiting


def suspended(context: Context) -> Context:
    """Stop all pods and keep everything that was learned."""
    context = all_stopped(context, "the job was suspended")
    text = "suspended: nothing runs; measurements are kept"
    if not context.holds("Suspended"):
        context = context.with_condition("Suspended", True, reasons.SUSPENDED, text)
        context = context.telling("Normal", reasons.SUSPENDED, text)
    # As for a Kubernetes Job, the deadline restarts when pods run again.
    context = no_longer_waiting(context, reasons.SUSPENDED, "the job is suspended")
    return context.saying(text).having(phase="Suspended", first_running_at=None)


def resumed(context: Context) -> Context:
    """Continue where the job was when it was suspended."""
    text = "no longer suspended"
    context = context.with_condition("Suspended", False, reasons.RESUMED, text)
    return context.telling("Normal", reasons.RESUMED, text).saying("the job goes on")
