"""The end of a job by its own mistake, in the words of its last report."""

from __future__ import annotations

from collections.abc import Sequence

from memtune.api.status import RunStatus
from memtune.controller import reasons
from memtune.controller.context import Context
from memtune.controller.measurements import reports_of
from memtune.controller.messages import ended
from memtune.controller.records import MISTAKES, ended_as
from memtune.controller.text import line
from memtune.controller.verdict import Verdict

_LINES = 400
# How the runner begins a line of its own.
_RUNNER = "memtune: "
_TWICE = "This was seen twice, so no more GPUs are spent on it"
_REASONS = {
    Verdict.USER_ERROR: reasons.USER_ERROR,
    Verdict.IMAGE_ERROR: reasons.IMAGE_ERROR,
    Verdict.PLAN_NOT_APPLIED: reasons.PLAN_NOT_APPLIED,
    Verdict.HUNG: reasons.HUNG,
}


def last_lines(context: Context, records: Sequence[RunStatus], why: str = _TWICE) -> tuple[str, str]:
    """The reason and the story of the last mistake, with the last lines of its log where the report has them, and why
    it is not tried again."""
    last = [record for record in records if ended_as(record, *MISTAKES)][-1]
    tails = [report.log_tail for report in reports_of(context.pods(last)) if report.log_tail]
    lines = _last_lines(tails[0], last.message) if tails else ""
    tail = f"; its last lines: {lines}" if lines else ""
    reason = _REASONS[Verdict(last.verdict)] if last.verdict else reasons.USER_ERROR
    return reason, f"{ended(last)}{tail}. {why}"


def _last_lines(log: str, message: str) -> str:
    """As many whole lines from the end of a log as there is room for, without those that the message has already."""
    lines = [plain for each in log.splitlines() if (plain := line(each, _LINES))]
    while lines and lines[-1].removeprefix(_RUNNER) in message:
        lines.pop()
    taken: list[str] = []
    while lines and len(" ".join([lines[-1], *taken])) <= _LINES:
        taken.insert(0, lines.pop())
    return " ".join(taken)
