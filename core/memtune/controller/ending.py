"""How a job ends, and what happens afterwards: Succeeded, Failed, suspended, its deadline and its time to live."""

from __future__ import annotations

from memtune.controller import reasons
from memtune.controller.context import Context
from memtune.controller.fold_observations import all_stopped
from memtune.controller.text import span
from memtune.controller.times import to_seconds


def completed(context: Context, reason: str, text: str) -> Context:
    """The job has done what it was made for."""
    context = context.with_condition("Complete", True, reason, text).saying(text)
    return _quiet(context).telling("Normal", reason, text).having(phase="Succeeded")


def failed(context: Context, reason: str, text: str) -> Context:
    """The job is over without having done what it was made for; runs that go on are stopped."""
    context = all_stopped(context, "the job has failed")
    context = context.with_condition("Failed", True, reason, text).saying(text)
    return _quiet(context).telling("Warning", reason, text).having(phase="Failed")


def _quiet(context: Context, reason: str = reasons.OVER, text: str = "the job is over") -> Context:
    """Nothing is waited for any more."""
    for kind in ("Queued", "Stalled"):
        if context.holds(kind):
            context = context.with_condition(kind, False, reason, text)
    return context


def finished(context: Context) -> Context:
    """After its end a job only waits for its time to live."""
    # Where somebody wrote another phase, conditions tell.
    context = context.having(phase="Succeeded" if context.holds("Complete") else "Failed")
    context = all_stopped(context, "the job is over")
    ends = (context.since(kind) for kind in ("Complete", "Failed") if context.holds(kind))
    ended_at = next((end for end in ends if end is not None), None)
    time_to_live = context.job.spec.ttl_seconds_after_finished
    if time_to_live is None or ended_at is None:
        return context
    left = ended_at + time_to_live - context.now
    return context.deleting_job() if left <= 0 else context.waking(left)


def past_deadline(context: Context) -> Context:
    """Fail a job that has been running for longer than it may; else be there when it has."""
    deadline, began = context.job.spec.active_deadline_seconds, to_seconds(context.status.first_running_at)
    if deadline is None or began is None:
        return context
    left = began + deadline - context.now
    if left > 0:
        return context.waking(left)
    text = f"activeDeadlineSeconds: {span(deadline)} have passed since the first run began"
    return failed(context, reasons.DEADLINE_EXCEEDED, text)


def suspended(context: Context) -> Context:
    """Stop all pods and keep all that was learned."""
    context = all_stopped(context, "the job was suspended")
    text = "suspended: nothing runs; what was learned is kept"
    if not context.holds("Suspended"):
        context = context.with_condition("Suspended", True, reasons.SUSPENDED, text)
        context = context.telling("Normal", reasons.SUSPENDED, text)
    # As with a Job of Kubernetes, the deadline counts anew once pods run again.
    context = _quiet(context, reasons.SUSPENDED, "the job is suspended")
    return context.saying(text).having(phase="Suspended", first_running_at=None)


def resumed(context: Context) -> Context:
    """Go on where the job was when it was suspended."""
    if not context.holds("Suspended"):
        return context
    text = "no longer suspended"
    context = context.with_condition("Suspended", False, reasons.RESUMED, text)
    return context.telling("Normal", reasons.RESUMED, text).saying("the job goes on")
