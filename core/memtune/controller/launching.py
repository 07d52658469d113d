"""Phase Launching: starts the attempt on the chosen plan."""

from __future__ import annotations

from typing import Any

from memtune.api import reasons
from memtune.api.status import AttemptStatus, PlanStatus, PredictionStatus, line, natural
from memtune.controller.context import LOOK_AGAIN_SECONDS, Context, holds_gpus
from memtune.controller.host_requests import host_request
from memtune.controller.job_knowledge import current_knowledge
from memtune.controller.messages import trains
from memtune.controller.predicting import prediction_status
from memtune.controller.records import evaluation_limit, last_attempt, new_name, of_training, with_attempt
from memtune.controller.trials import may_be_launched
from memtune.planning.space import Candidate
from memtune.plans.plan import Plan
from memtune.units import over
from memtune.wire.run import RunKind

_LONGEST_RUNG = 63


def launching(context: Context) -> Context:
    """Record the first attempt once the probes released their GPUs; then wait for its containers."""
    last = last_attempt(context.status)
    if last is not None:
        return context.saying(f"attempt {last.number} is starting on {last.plan}")
    if _is_outdated(context):
        return _back_to_probing(context)
    if context.blocked or context.status.plan is None:
        return context
    if others_hold_gpus(context):
        return context.saying("waiting until the probes have given their GPUs back").waking(LOOK_AGAIN_SECONDS)
    plan = context.status.plan.name
    # It evaluates as the probe did that measured its plan.
    limits = [evaluation_limit(context.status, probe) for probe in context.status.probes if probe.plan == plan]
    return record_attempt(context, Plan.parse(plan), reasons.LAUNCHED, evaluation_batch=max(limits, default=0))


def _is_outdated(context: Context) -> bool:
    """Whether an edit of the spec forbids the measured plan."""
    plan = context.status.plan
    if plan is None or context.job.spec.tuning.mode != "Probe":
        return False
    knowledge, tuned = current_knowledge(context), context.condition("Tuned")
    is_emulated = tuned is not None and tuned.reason == reasons.EMULATED
    records = context.status.emulations if is_emulated else context.status.own_probes
    return not any(each.plan == plan.name and may_be_launched(context.job, knowledge, each) for each in records)


def _back_to_probing(context: Context) -> Context:
    """Return to probing, which chooses another plan or measures one more."""
    assert context.status.plan is not None
    text = f"{context.status.plan.name} was measured, and may not be launched as spec.tuning is now"
    context = context.having(plan=None, front=(), probing_ended="")
    context = context.with_condition("Tuned", False, reasons.PROBING, text)
    return context.telling("Normal", reasons.PROBING, text).saying(text)


def others_hold_gpus(context: Context) -> bool:
    """Whether a pod of an earlier run, recorded or not, may still hold its GPUs or write its checkpoints."""
    # A run that already has the next run's name is adopted if it has its plan; else that name is not free yet.
    _, own = new_name(context.job, RunKind.TRAIN, context.status.attempts)
    others = {own, *(record.name for record in context.status.emulations)}
    return any(holds_gpus(pod) for name, run in context.observed.runs.items() if name not in others for pod in run.pods)


def record_attempt(
    context: Context, plan: Plan, reason: str, rung: str = "", host_request_bytes: int = 0, **details: Any
) -> Context:
    """Record one more attempt. Its pods are created once the record is written."""
    number, name = new_name(context.job, RunKind.TRAIN, context.status.attempts)
    expected_bytes, prediction = _predicted(context, plan)
    record = AttemptStatus(
        name=name,
        number=number,
        plan=str(plan),
        emulated=context.job.spec.resources.is_emulated,
        predicted_bytes=expected_bytes,
        rung=line(rung, _LONGEST_RUNG),
        host_request_bytes=max(host_request_bytes, host_request(context, plan, details.get("resume", "no"))),
        **details,
    )
    # Compare the current plan with its own prediction, not with that of an earlier choice.
    context = context.having(prediction=prediction or context.status.prediction)
    shown = context.status.plan
    if shown is None or shown.name != str(plan):
        context = context.having(plan=_shown(plan, expected_bytes, prediction))
    lost = (
        ", since no checkpoint was saved that it could resume from"
        if record.resume == "no" and _saved_nothing(context)
        else ""
    )
    context = context.becoming(with_attempt(context.status, record))
    text = trains(record, context.job.spec.resources.shrink, lost)
    context = context.with_condition("Launched", True, reason, text)
    return context.telling("Normal", reason, text).saying(text)


def _saved_nothing(context: Context) -> bool:
    """Whether a job that has a place for checkpoints has trained and saved none."""
    before = of_training(context.status)
    has_place = context.job.spec.checkpoint is not None
    return has_place and any(each.trained for each in before) and all(each.checkpoint == "none" for each in before)


def _predicted(context: Context, plan: Plan) -> tuple[int, PredictionStatus | None]:
    """The predicted memory of a plan; nothing if mode Fixed launches an unknown model."""
    try:
        knowledge = current_knowledge(context)
        if knowledge.workload.assumed and not knowledge.is_known:
            return 0, None
        return natural(knowledge.expected_bytes(plan)), prediction_status(
            knowledge, Candidate(plan, knowledge.predict(plan))
        )
    except ValueError:
        return 0, None


def _shown(plan: Plan, expected_bytes: int, prediction: PredictionStatus | None) -> PlanStatus:
    if prediction is None:
        return PlanStatus(name=str(plan))
    hbm = over(expected_bytes, prediction.usable_bytes)
    return PlanStatus(name=str(plan), hbm=hbm, tokens_per_second=prediction.tokens_per_second)
