"""Trace runs: a pod on a CPU traces the job's factory before prediction, unless the namespace stores the trace."""

from __future__ import annotations

from dataclasses import replace

from memtune.api import reasons
from memtune.api.factory import TIME_LIMIT_SECONDS
from memtune.api.job import Job
from memtune.api.status import Status, TraceStatus, explanation, to_seconds, to_text
from memtune.controller.context import Context
from memtune.controller.observation import RunObservation
from memtune.controller.records import ended_as, has_ended
from memtune.controller.verdict import Conclusion, Verdict, conclude, waits
from memtune.memory.traced_model import TracedModel, read_traced
from memtune.units import counted
from memtune.wire.names import run_name
from memtune.wire.run import RunKind
from memtune.wire.trace import TraceError

# The tracer enforces its own limit, but not when it is stuck outside Python.
_LIMIT_SECONDS = TIME_LIMIT_SECONDS + 30.0
# Give up after this many trace pods if the cluster keeps taking them away.
_MOST_TRACES = 4
# Causes in the factory or its image: another pod would fail as well.
_FINAL = (Verdict.USER_ERROR, Verdict.HOST_OOM, Verdict.HUNG, Verdict.IMAGE_ERROR)


def traced_model(trace: str) -> TracedModel | None:
    """The traced model, if the trace is readable."""
    try:
        return read_traced(trace) if trace else None
    except TraceError:
        return None


def is_given_up(job: Job, status: Status) -> bool:
    """Whether tracing failed for good, so that nothing is known of the model before a probe measures it."""
    record = status.trace
    if job.spec.model.factory is None or record is None or not has_ended(record):
        return False
    is_lost = record.verdict is not None and not ended_as(record, Verdict.SUCCEEDED)
    return ended_as(record, *_FINAL) or (is_lost and record.number >= _MOST_TRACES)


def with_trace(context: Context, record: TraceStatus) -> Context:
    """Take over how the job's own trace run ended, and the trace that it left."""
    run = context.runs[record.name]
    if not has_ended(record):
        context = _settled(context, record, run)
        record = context.status.trace or record
    words = run.pods[0].last_words
    # A stored trace may be of another job whose mounted code differs.
    if ended_as(record, Verdict.SUCCEEDED) and traced_model(words):
        return replace(context, trace=words)
    return context


def _settled(context: Context, record: TraceStatus, run: RunObservation) -> Context:
    pod = run.pods[0]
    started = pod.started_at_seconds
    update = {
        "created": record.created or bool(pod.uid),
        "started_at": record.started_at or (to_text(started) if started is not None else None),
    }
    context = context.having(trace=record.model_copy(update=update))
    is_late = started is not None and pod.exit_code is None and context.now - started > _LIMIT_SECONDS
    conclusion = _concluded(replace(run, overdue=is_late))
    if conclusion is None or waits(run):
        return context
    return _ended(context, conclusion.verdict, conclusion.message)


def _concluded(run: RunObservation) -> Conclusion | None:
    pod = run.pods[0]
    if pod.exit_code == 0 and pod.present:
        try:
            model = read_traced(pod.last_words)
        except TraceError as error:
            return Conclusion(Verdict.USER_ERROR, 0, str(error))
        size = f"{model.name}, {model.trace.total:,} parameters, {counted(model.trace.blocks, 'repeated block')}"
        return Conclusion(Verdict.SUCCEEDED, 0, f"{size}, traced without a GPU")
    found = conclude(run)
    if found and found.verdict is Verdict.USER_ERROR and pod.last_words:
        return found._replace(message=pod.last_words)
    return found


def _ended(context: Context, verdict: Verdict, why: str) -> Context:
    record = context.status.trace
    assert record is not None
    new = {"verdict": str(verdict), "ended_at": to_text(context.now), "message": explanation(why)}
    context = context.having(trace=record.model_copy(update=new))
    is_good = verdict is Verdict.SUCCEEDED
    text = why if is_good else untraced(context.job, why)
    return context.telling("Normal" if is_good else "Warning", reasons.TRACE_ENDED, text)


def untraced(job: Job, why: str) -> str:
    """The message about a factory that could not be traced."""
    return f"model.factory {job.spec.model.factory} could not be traced: {why}"


def is_unknown(context: Context) -> bool:
    """Whether nothing is known of the model, now or later."""
    return is_given_up(context.job, context.status) and traced_model(context.trace) is None


def needs_trace(context: Context) -> bool:
    """Whether the prediction of what a factory builds needs a trace first."""
    return not is_given_up(context.job, context.status) and traced_model(context.trace) is None


def tracing(context: Context) -> Context:
    """Wait for the trace run, or record it."""
    record, factory = context.status.trace, context.job.spec.model.factory
    if record and not has_ended(record):
        started = to_seconds(record.started_at)
        passed = 0.0 if started is None else context.now - started
        context = context.waking(_LIMIT_SECONDS - passed)
        return context.saying(f"{factory} is being traced on a CPU")
    if context.blocked:
        return context
    number = record.number + 1 if record else 1
    name = run_name(context.job.metadata.name, RunKind.TRACE, number)
    text = f"{factory} is traced on a CPU, so that its plans can be predicted"
    context = context.having(trace=TraceStatus(name=name, number=number))
    return context.telling("Normal", reasons.TRACE_RECORDED, text).saying(text)
