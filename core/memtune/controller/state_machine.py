"""The state machine, `decide`: derives a job's state from its records and runs phase after phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from memtune.api import reasons
from memtune.api.job import Job
from memtune.api.status import Condition, Phase, PlanStatus, PredictionStatus, Status, job_message, to_text
from memtune.controller import emulating
from memtune.controller.blocking import forbidden, with_blocks, with_conditions
from memtune.controller.context import Context, Decision, JobEvent
from memtune.controller.fold_observations import settle
from memtune.controller.job_end import failed, finished, past_deadline
from memtune.controller.launching import launching
from memtune.controller.messages import ended
from memtune.controller.observation import Blocker, Observed
from memtune.controller.pods import ExpectedRuns, creations, deletions
from memtune.controller.predicting import pending, predicting
from memtune.controller.probing import probing
from memtune.controller.records import (
    changed_fields,
    ended_as,
    has_ended,
    is_over,
    last_attempt,
    read_status,
    restore,
    spec_changed,
)
from memtune.controller.recovering import recovering
from memtune.controller.running import running
from memtune.controller.stored_measurements import overhead_to_store, probes_to_store
from memtune.controller.suspension import resumed, suspended
from memtune.controller.tracing import needs_trace, tracing, with_trace
from memtune.controller.verdict import Verdict
from memtune.planning import cost
from memtune.planning.next_probe import Search, most_promising

_PHASES: dict[Phase, Callable[[Context], Context]] = {
    "Pending": pending,
    "Predicting": predicting,
    "Probing": probing,
    "Launching": launching,
    "Running": running,
    "Recovering": recovering,
}


# The phases that predict plans; a launch does so before its first attempt is recorded.
_PREDICTED = ("Predicting", "Probing", "Recovering")
# Year 5138: a later clock is wrong, and the calendar ends soon after.
_LATEST = 1e11
# The errors that the model raises for a job with no workload, or an absurd one.
_NO_MODEL = (ValueError, ArithmeticError)


def decide(job: Job, observed: Observed, now: float, search: Search = most_promising) -> Decision:
    """Decide what follows from the observation. Equal arguments give equal decisions, and nothing is raised.

    One decision records a run in the status. A later one, which observes that record, creates the run's pods.
    """
    stored = read_status(observed.status)
    changed = _illegible(job, stored)
    before = restore(job, stored, is_legible=not changed)
    now = now if 0 <= now < _LATEST else 0.0
    status = before.model_copy(update={"observed_generation": max(job.metadata.generation, 0)})
    runs = ExpectedRuns(job, status, observed, now)
    context = Context(job, observed, now, search, status, runs, trace=observed.trace)
    if status.trace:
        context = with_trace(context, status.trace)
    if not is_over(context.status):
        context = _without_plans(context, changed) if changed else _advanced(_settled(context))
        if changed and not _is_halted(context):
            return _refused(context, changed)
    if is_over(context.status):
        context = finished(context)
    decision = _decision(context, before)
    # Measurements from before an edit must not be stored as those of the edited job.
    return replace(decision, measured_overhead=None, probes=()) if changed else decision


def refuse(observed: Observed, generation: int, problem: Blocker, now: float) -> Decision:
    """For a job that is invalid or may not be managed: say so, start nothing, leave running pods alone."""
    status = read_status(observed.status)
    if is_over(status):
        return Decision(status)
    reason, text = problem.reason, job_message(problem.message)
    old = next((each for each in status.conditions if each.type == "Stalled"), None)
    is_new = old is None or (old.status, old.reason, old.message) != ("True", reason, text)
    changed_at = old.last_transition_time if old and old.status == "True" else to_text(now)
    condition = Condition(
        type="Stalled",
        status="True",
        observed_generation=max(generation, 0),
        last_transition_time=changed_at,
        reason=reason,
        message=text,
    )
    others = tuple(each for each in status.conditions if each.type != "Stalled")
    events = (JobEvent("Warning", reason, text),) if is_new else ()
    changes = {"conditions": (*others, condition), "message": text, "observed_generation": max(generation, 0)}
    return Decision(status.model_copy(update=changes), events=events)


def _settled(context: Context) -> Context:
    """Fold in what was observed of the runs on GPUs and of the emulated probes that have not ended."""
    context = settle(context)
    for record in context.status.emulations:
        if not has_ended(record):
            context = emulating.settled(context, record)
    return context


def _illegible(job: Job, status: Status) -> list[str]:
    """The edited fields without which the records cannot be read. Servers with CEL rules refuse such an edit."""
    changed = changed_fields(job, status)
    return changed if {"training", "resources"}.intersection(changed) else []


def _without_plans(context: Context, changed: list[str]) -> Context:
    """The checks that need no plans of an edited job's runs: whether the job has ended or must end."""
    if "resources" not in changed:  # otherwise the number of pods of a run is unknown
        context = settle(context)
    last = last_attempt(context.status)
    if last is not None and ended_as(last, Verdict.SUCCEEDED):
        return running(context)
    return _halted(context)


def _halted(context: Context) -> Context:
    """Suspend, or fail past the deadline."""
    spec = context.job.spec
    if spec.suspend:
        return suspended(context)
    return context if spec.active_deadline_seconds is None else past_deadline(context)


def _is_halted(context: Context) -> bool:
    return context.job.spec.suspend or is_over(context.status)


def _refused(context: Context, changed: list[str]) -> Decision:
    """Keep running until the fields are put back or the deadline comes."""
    blocker = Blocker(reasons.SPEC_CHANGED, spec_changed(changed))
    decision = refuse(context.observed, context.job.metadata.generation, blocker, context.now)
    return replace(decision, wake_after_seconds=min(context.wakes, default=None))


def _advanced(context: Context) -> Context:
    if context.holds("Suspended") and not context.job.spec.suspend:
        context = resumed(context)
    context = _halted(context)
    if _is_halted(context):
        return context
    context = _walked(with_blocks(context))
    return context if is_over(context.status) else with_conditions(context)


def _walked(context: Context) -> Context:
    """Run phase after phase until one has to wait for the outside world."""
    for _ in range(len(_PHASES)):
        phase = _place(context)
        context = context.having(phase=phase)
        if context.job.spec.model.factory and _predicts(context, phase) and needs_trace(context):
            return tracing(context)
        try:
            context = _PHASES[phase](context)
        except _NO_MODEL as error:
            return _without_model(context, str(error))
        if is_over(context.status) or _place(context) == phase:
            break
        if phase == "Pending" and context.job.spec.tuning.chooses_product:
            break  # what earlier jobs measured on the product that was chosen now is observed next time
    return context


def _predicts(context: Context, phase: Phase) -> bool:
    return phase in _PREDICTED or (phase == "Launching" and not context.status.attempts)


def _without_model(context: Context, why: str) -> Context:
    """Nothing can be predicted: before the first attempt wait for a better spec, afterwards end the job."""
    if not context.status.attempts:
        if not context.status.probes:
            # The job has not started after all: its spec may still be corrected.
            context = context.having(phase="Pending", fixed=())
        return replace(context, stalled=context.stalled or Blocker(reasons.MODEL_UNKNOWN, job_message(why)))
    last = context.status.attempts[-1]
    text = f"{ended(last)}, and no smaller plan can be predicted: {why}"
    return failed(context, reasons.MODEL_UNKNOWN, text, last.name)


def _place(context: Context) -> Phase:
    """The phase that the records imply, whatever the status's phase says."""
    status, last = context.status, last_attempt(context.status)
    if last is not None:
        if not has_ended(last):
            return "Running" if last.started_at else "Launching"
        return "Running" if ended_as(last, Verdict.SUCCEEDED) else "Recovering"
    if not status.fixed:
        return "Pending"
    if _is_tuned(context):
        return "Launching"
    # The mode may change after a plan was chosen, from one with probes to one without or back.
    is_probed = context.job.spec.tuning.mode == "Probe" and not context.holds("Tuned")
    return "Probing" if is_probed and context.condition("Predicted") is not None else "Predicting"


def _is_tuned(context: Context) -> bool:
    """Whether a plan was chosen as the current mode demands: the mode is editable until the first attempt."""
    plan, tuned, spec = context.status.plan, context.condition("Tuned"), context.job.spec
    if plan is None or tuned is None or tuned.status != "True":
        return False
    if given := spec.tuning.fixed_plan:
        return plan.name == str(given)
    is_emulated = tuned.reason == reasons.EMULATED and spec.tuning.emulation == "Only"
    return spec.tuning.mode == "Probe" and (tuned.reason == reasons.MEASURED or is_emulated)


_Speed = TypeVar("_Speed", PlanStatus, PredictionStatus)


def _priced(context: Context, read: Status) -> Context:
    """Write the current price and what each plan costs at it; ``read`` is the status as it was."""
    price = _current_price(context, read)
    changes = {
        "gpu_hour_price": price,
        "prediction": _with_cost(context.status.prediction, price, context.world),
        "plan": _with_cost(context.status.plan, price, context.world),
    }
    return context.having(**changes)


def _with_cost(of: _Speed | None, price: float | None, gpus: int) -> _Speed | None:
    found = cost.per_million_tokens(price, gpus, of.tokens_per_second) if of and price else None
    return of.model_copy(update={"cost_per_million_tokens": found}) if of else None


def _current_price(context: Context, read: Status) -> float | None:
    """The price in the status; an ended job keeps its last price."""
    resources = context.job.spec.resources
    if resources.device == "virtual":
        return None  # CPUs set its speed, and are not rented as a GPU
    if resources.gpu_hour_price is None and is_over(read):
        return read.gpu_hour_price
    return context.gpu_hour_price(resources.gpu_product or context.status.gpu_product)


def _decision(context: Context, read: Status) -> Decision:
    """The decision, with pods to create and delete derived from the records."""
    context = _priced(context, read)
    held = context.job.spec.suspend or is_over(context.status) or forbidden(context) is not None
    return Decision(
        status=context.status,
        create=() if held else creations(context, read),
        delete=deletions(context, read),
        events=context.events if context.status != read else (),
        wake_after_seconds=min(context.wakes, default=None),
        delete_job=context.is_due,
        trace=context.trace if context.trace != context.observed.trace else "",
        # An ended job stores nothing more, so that deleted entries stay deleted.
        measured_overhead=None if is_over(read) else overhead_to_store(context),
        probes=() if is_over(read) else probes_to_store(context),
    )
