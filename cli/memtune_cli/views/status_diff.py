"""The changes between two states of a job, one line each. Pure."""

from __future__ import annotations

from collections.abc import Collection

from memtune.api.status import AttemptStatus
from memtune.controller.messages import ended, replaced_batch, warning
from memtune.controller.records import ended_as, has_ended
from memtune.controller.verdict import Verdict
from memtune_cli.input.job_view import JobView


def without_shown(text: str, shown: Collection[str]) -> str:
    """The text without a prefix that was shown before, usually how a run ended."""
    for each in shown:
        if text.startswith((f"{each}; ", f"{each}. ")):
            text = text[len(each) + 2 :]
    return text


def _without_warned(text: str, after: JobView, warned: Collection[str]) -> str:
    """The text without the warnings at its end that one of ``warned`` ends in, too."""
    attempts = after.status.attempts
    is_warned = bool(attempts) and ended_as(attempts[-1], Verdict.SUCCEEDED)
    for each in (warning(attempts[-1]) if is_warned else "", replaced_batch(after.status, after.job)):
        if each and any(shown.endswith(each) for shown in warned):
            text = text.removesuffix(each).removesuffix("; ")
    return text


def saying(
    before: JobView | None, after: JobView, shown: Collection[str] = (), warned: Collection[str] = ()
) -> list[str]:
    """The job's current activity, if it changed, without the parts of its message already ``shown`` or ``warned`` of.

    Each of ``warned`` ends in what a script should change.
    """
    was, now = before.status if before else None, after.status
    is_new_phase = was is None or was.phase != now.phase
    if was and not is_new_phase and was.message == now.message:
        return []
    rest = _without_warned(now.message, after, warned)
    rest = "" if rest in shown else without_shown(rest, shown)
    return [f"[{now.phase}] {rest}".rstrip()] if rest or is_new_phase else []


def status_changes(before: JobView | None, after: JobView) -> list[str]:
    """The changes between two states: runs that ended, and the current activity."""
    known = {run.name for run in (before or after).runs if has_ended(run)}
    new = [run for run in after.runs if has_ended(run) and run.name not in known]
    if after.status.phase == "Succeeded":
        new = [run for run in new if not (isinstance(run, AttemptStatus) and ended_as(run, Verdict.SUCCEEDED))]
    endings = [ended(run) for run in new]
    # A job's message often repeats the outcome of its run, and the success of an attempt is the job's.
    said = saying(before, after)
    endings = [line for line in endings if not any(line in sentence for sentence in said)]
    return endings + saying(before, after, warned=endings)
