"""The next step of a job, in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Callable

from memtune.controller.records import has_ended
from memtune.planning.space import MEMORY
from memtune.units import counted
from memtune_cli.input.job_view import JobView


def next_step(view: JobView) -> str:
    """The operator's next step, or the reason why it waits."""
    obstacle = view.obstacle
    if view.state and not view.is_over and (view.is_left or view.status.phase == "Suspended"):
        return f"nothing until `memtune run` is called again{f': {obstacle.message}' if obstacle else ''}"
    if obstacle and not view.is_over:
        return f"nothing until this is resolved; it is looked at again every half a minute: {obstacle.message}"
    sentence = _NEXT[view.status.phase]
    return sentence if isinstance(sentence, str) else sentence(view)


def _pending(view: JobView) -> str:
    return f"{'memtune run' if view.state else 'an operator that watches this namespace'} takes the job up"


def _probing(view: JobView) -> str:
    job, found = view.job, view.budget
    if job is None or found is None:
        return "a probe starts or ends"
    tuning = job.spec.tuning
    aim = "smallest" if tuning.objective == MEMORY else "fastest"
    live = sum(1 for probe in view.status.probes if not has_ended(probe))
    more = found.most - found.done - live
    parts = [
        *(["the emulated probe ends"] if any(not has_ended(each) for each in view.status.emulations) else []),
        *([f"{live} running probes end" if live > 1 else "the running probe ends"] if live else []),
        *([f"up to {counted(more, 'more probe')}"] if more > 0 else []),
        f"then the {aim} measured plan that leaves {tuning.headroom} free is launched{_traded(tuning.slack)}",
    ]
    return "; ".join(parts)


def _traded(slack: str | None) -> str:
    return f", or a smaller one that is at most {slack} slower" if slack else ""


def _running(view: JobView) -> str:
    job = view.job
    if job is None:
        return "it trains to its end"
    goes_on = "it runs to its end, emulated" if view.is_emulated else "it trains to its end"
    left = max(job.spec.retry.max_oom_retries - view.status.oom_retries, 0)
    can_go_on = job.spec.checkpoint is not None or job.spec.retry.allow_restart
    if not left or not can_go_on:
        why = "retry.maxOomRetries is spent" if not left else "there is no spec.checkpoint"
        return f"{goes_on}; an out-of-memory would end the job, since {why}"
    start = "the newest checkpoint" if job.spec.checkpoint else "step 0"
    return f"{goes_on}; after an out-of-memory it would resume from {start} on a plan that fits ({left} left)"


def _over(view: JobView) -> str:
    if view.status.phase == "Failed":
        return f"nothing: the job is over; `memtune logs {view.asked_as}` shows what the failing rank said"
    # Local state directories are never deleted.
    seconds = view.job.spec.ttl_seconds_after_finished if view.job and not view.state else None
    return "nothing: the job is over" + (f"; it is deleted {seconds:,} s after its end" if seconds is not None else "")


_NEXT: dict[str, str | Callable[[JobView], str]] = {
    "Pending": _pending,
    "Predicting": "the best plans are predicted; no GPU is needed for that",
    "Probing": _probing,
    "Launching": "the training starts on the chosen plan",
    "Running": _running,
    "Recovering": "the next attempt starts once the last one has given its GPUs back and its pause is over",
    "Suspended": "nothing until spec.suspend is false again; measurements are kept",
    "Succeeded": _over,
    "Failed": _over,
}
