"""The end of a job: succeeded or failed, its deadline and its TTL."""

from __future__ import annotations

from dataclasses import replace

from memtune.api import reasons
from memtune.api.status import to_seconds
from memtune.controller.context import Context
from memtune.controller.fold_observations import all_stopped
from memtune.units import span


def completed(context: Context, reason: str, text: str, *warnings: str) -> Context:
    """Complete the job; its message also has the ``warnings``, each of which was an event before."""
    whole = "; ".join(filter(None, (text, *warnings)))
    context = context.with_condition("Complete", True, reason, whole).saying(whole)
    return no_longer_waiting(context).telling("Normal", reason, text).having(phase="Succeeded")


def failed(context: Context, reason: str, text: str, run: str = "") -> Context:
    """Fail the job and stop its running runs. If the text begins with the end of a ``run``, that is no event, too."""
    context = all_stopped(context, "the job has failed")
    context = replace(context, events=tuple(each for each in context.events if not run or each.run != run))
    context = context.with_condition("Failed", True, reason, text).saying(text)
    return no_longer_waiting(context).telling("Warning", reason, text).having(phase="Failed")


def no_longer_waiting(context: Context, reason: str = reasons.OVER, text: str = "the job is over") -> Context:
    """Clear what the job waits for."""
    for kind in ("Queued", "Stalled"):
        if context.holds(kind):
            context = context.with_condition(kind, False, reason, text)
    return context


def finished(context: Context) -> Context:
    """After its end a job only waits for its TTL."""
    # If somebody edited the phase, the conditions decide.
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
    """Fail a job past its active deadline; otherwise wake when it is reached."""
    deadline, began = context.job.spec.active_deadline_seconds, to_seconds(context.status.first_running_at)
    if deadline is None or began is None:
        return context
    left = began + deadline - context.now
    if left > 0:
        return context.waking(left)
    text = f"activeDeadlineSeconds: {span(deadline)} have passed since the first run began"
    return failed(context, reasons.DEADLINE_EXCEEDED, text)
