"""Runs that failed by a mistake of the job: whether another would fail as well, and their last log lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memtune.api import reasons
from memtune.api.status import RunStatus, line
from memtune.controller.context import Context
from memtune.controller.messages import ended
from memtune.controller.records import MOST_MISTAKES, mistakes
from memtune.controller.reported_numbers import reports_of
from memtune.controller.verdict import Verdict

_LINES = 400
# The prefix of the runner's own log lines. A line that the message already has is not shown twice; no code decides
# anything by what a line says.
_RUNNER = "memtune: "
# The prefix of torch.distributed in the lines of a traceback.
_RANK = re.compile(r"^\[rank\d+\]: ?")
# tqdm's progress bars as far as they are drawn, and what Python marks the place of an error with.
_DRAWN = re.compile(r"^[^|]*\d+%\|[^|]*\| *\d+/[^\[\]]*(\[[^\]]*\])?|[\s^~]+$")
_REASONS = {
    Verdict.USER_ERROR: reasons.USER_ERROR,
    Verdict.IMAGE_ERROR: reasons.IMAGE_ERROR,
    Verdict.PLAN_NOT_APPLIED: reasons.PLAN_NOT_APPLIED,
    Verdict.HUNG: reasons.HUNG,
}


def are_hopeless(context: Context, wrong: Sequence[RunStatus]) -> bool:
    """Whether another run would fail as well, by the mistakes that these have failed of."""
    if len(wrong) >= MOST_MISTAKES:
        return True
    others = (each for each in (*context.status.probes, *context.status.attempts) if each not in wrong)
    if any(map(_has_worked, others)):
        return False  # what is wrong now was right then
    return any(report.bad_command and not report.steps for run in wrong for report in reports_of(context.pods(run)))


def _has_worked(record: RunStatus) -> bool:
    """Whether the job's command has reached the GPU in this run."""
    return not record.measured_by and bool(record.peak_bytes and record.peak_bytes.allocated)


def last_lines(context: Context, records: Sequence[RunStatus], why: str = "") -> tuple[str, str, str]:
    """Reason, message and run of the last failure: its last log lines, if reported, and why it is not retried."""
    *before, last = mistakes(records)
    tails = [report.log_tail for report in reports_of(context.pods(last)) if report.log_tail]
    lines = _last_lines(tails[0], last.message) if tails else ""
    tail = f"; its last lines: {lines}" if lines else ""
    reason = _REASONS[Verdict(last.verdict)] if last.verdict else reasons.USER_ERROR
    return reason, f"{f'{ended(last)}{tail}'.removesuffix('.')}. {why or _not_retried(before, last)}", last.name


def _not_retried(before: Sequence[RunStatus], last: RunStatus) -> str:
    if not before:
        return "Under any other plan it would fail alike"
    # The second mistake can be a consequence of the first, which is then the one to mend.
    if (before[-1].verdict, before[-1].message) == (last.verdict, last.message):
        return "Two runs failed alike, so no more GPUs are spent on the job"
    return f"Before, {ended(before[-1])}; no more GPUs are spent on the job"


def _last_lines(log: str, message: str) -> str:
    """As many whole lines from the end of a log as fit, without those that the message already has."""
    own = (_RANK.sub("", each) for each in log.splitlines())
    lines = [plain for each in own if (plain := line(_DRAWN.sub("", each), _LINES))]
    while lines and lines[-1].removeprefix(_RUNNER) in message:
        lines.pop()
    # A progress bar of the script's own may have been drawn after the error, or before it on the same line.
    lines = list(filter(None, (_without_error(each, message) for each in lines)))
    taken: list[str] = []
    while lines and len(" ".join([lines[-1], *taken])) <= _LINES:
        taken.insert(0, lines.pop())
    return " ".join(taken)


def _without_error(line_of_log: str, message: str) -> str:
    before, found, error = line_of_log.partition(_RUNNER)
    return before.rstrip() if found and error in message else line_of_log
