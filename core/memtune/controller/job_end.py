"""Phase Running, and the end of a job: succeeded, failed, suspended and resumed, its deadline and its TTL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from memtune.api import reasons
from memtune.api.status import PlanStatus, RunStatus, line, to_seconds
from memtune.controller.context import Context
from memtune.controller.fold_observations import all_stopped
from memtune.controller.messages import ended, inherited, measured, otherwise_trained, replaced_batch, trained, warning
from memtune.controller.records import MOST_MISTAKES, has_ended, last_attempt, mistakes
from memtune.controller.reported_numbers import reports_of
from memtune.controller.verdict import Verdict
from memtune.units import over, span


def completed(context: Context, reason: str, text: str, *warnings: str) -> Context:
    """Complete the job; its message also has the ``warnings``, each of which was an event before."""
    whole = "; ".join(filter(None, (text, *warnings)))
    context = context.with_condition("Complete", True, reason, whole).saying(whole)
    return _quiet(context).telling("Normal", reason, text).having(phase="Succeeded")


def failed(context: Context, reason: str, text: str, run: str = "") -> Context:
    """Fail the job and stop its running runs. If the text begins with the end of a ``run``, that is no event, too."""
    context = all_stopped(context, "the job has failed")
    context = replace(context, events=tuple(each for each in context.events if not run or each.run != run))
    context = context.with_condition("Failed", True, reason, text).saying(text)
    return _quiet(context).telling("Warning", reason, text).having(phase="Failed")


def _quiet(context: Context, reason: str = reasons.OVER, text: str = "the job is over") -> Context:
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


def suspended(context: Context) -> Context:
    """Stop all pods and keep everything that was learned."""
    context = all_stopped(context, "the job was suspended")
    text = "suspended: nothing runs; what was learned is kept"
    if not context.holds("Suspended"):
        context = context.with_condition("Suspended", True, reasons.SUSPENDED, text)
        context = context.telling("Normal", reasons.SUSPENDED, text)
    # As for a Kubernetes Job, the deadline restarts when pods run again.
    context = _quiet(context, reasons.SUSPENDED, "the job is suspended")
    return context.saying(text).having(phase="Suspended", first_running_at=None)


def resumed(context: Context) -> Context:
    """Continue where the job was when it was suspended."""
    if not context.holds("Suspended"):
        return context
    text = "no longer suspended"
    context = context.with_condition("Suspended", False, reasons.RESUMED, text)
    return context.telling("Normal", reasons.RESUMED, text).saying("the job goes on")


_LINES = 400
# The prefix of the runner's own log lines.
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


def are_hopeless(context: Context, records: Sequence[RunStatus]) -> bool:
    """Whether another run after these would fail as well, by the mistakes that they failed of."""
    wrong = mistakes(records)
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
    # A progress bar of the script's own may have been drawn after the refusal, or before it on the same line.
    lines = list(filter(None, (_without_refusal(each, message) for each in lines)))
    taken: list[str] = []
    while lines and len(" ".join([lines[-1], *taken])) <= _LINES:
        taken.insert(0, lines.pop())
    return " ".join(taken)


def _without_refusal(line_of_log: str, message: str) -> str:
    before, found, told = line_of_log.partition(_RUNNER)
    return before.rstrip() if found and told in message else line_of_log


def running(context: Context) -> Context:
    """Wait while the train run goes on; its success is the job's."""
    last = last_attempt(context.status)
    if last is None or not has_ended(last):
        number, plan = (last.number, last.plan) if last else (0, "")
        doing = "running emulated" if last and last.emulated else "training"
        return context.saying(f"attempt {number} is {doing} on {plan}")
    emulated = "has run to its end on an emulated GPU, no model was trained"
    did = emulated if last.emulated else trained(context.status)
    text = f"attempt {last.number} on {last.plan} {did}{inherited(last)}"
    if peaks := last.peak_bytes:
        hbm, prediction = over(peaks.device, peaks.total), context.status.prediction
        speed = prediction.tokens_per_second if last.emulated and prediction else last.tokens_per_second
        context = context.having(plan=PlanStatus(name=last.plan, hbm=hbm, tokens_per_second=speed))
        text = f"{text}, {measured(last)}"
    warnings = (otherwise_trained(context.status), replaced_batch(context.status, context.job), warning(last))
    return completed(context, reasons.SUCCEEDED, text, *warnings)
