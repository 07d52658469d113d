"""What is new about a job since somebody last looked at it, a line for each. Pure."""

from __future__ import annotations

from collections.abc import Collection

from memtune.controller.messages import ended
from memtune.controller.records import has_ended
from memtune_cli.input.job_view import JobView


def without_shown(text: str, shown: Collection[str]) -> str:
    """The text without a beginning that was shown before: as a rule, how a run ended."""
    for each in shown:
        if text.startswith((f"{each}; ", f"{each}. ")):
            text = text[len(each) + 2 :]
    return text


def saying(before: JobView | None, after: JobView, shown: Collection[str] = ()) -> list[str]:
    """What a job is doing now, if that is news, and of its message what was not ``shown`` already."""
    was, now = before.status if before else None, after.status
    is_new_phase = was is None or was.phase != now.phase
    if was and not is_new_phase and was.message == now.message:
        return []
    rest = "" if now.message in shown else without_shown(now.message, shown)
    return [f"[{now.phase}] {rest}".rstrip()] if rest or is_new_phase else []


def news(before: JobView | None, after: JobView) -> list[str]:
    """What happened between two looks at a job, a line for each: runs that ended, and what it is doing now."""
    said = saying(before, after)
    known = {run.name for run in (before or after).runs if has_ended(run)}
    endings = [ended(run) for run in after.runs if has_ended(run) and run.name not in known]
    # What became of a run is often part of what the job is doing about it.
    return [line for line in endings if not any(line in sentence for sentence in said)] + said
