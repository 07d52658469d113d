"""Phase Recovering: how the last attempt failed decides the next one, and against which limit it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memtune.api import reasons
from memtune.api.container import trainer_memory
from memtune.api.status import AttemptStatus
from memtune.controller.context import LOOK_AGAIN_SECONDS, Context
from memtune.controller.host_requests import host_need, host_request
from memtune.controller.job_end import failed
from memtune.controller.job_knowledge import current_knowledge
from memtune.controller.launching import others_hold_gpus, record_attempt
from memtune.controller.messages import ended, script_remedies
from memtune.controller.mistakes import are_hopeless, last_lines
from memtune.controller.oom_recovery import Next, after_device_oom, after_host_oom
from memtune.controller.records import ended_as, last_attempt, mistakes, next_number, plan_of
from memtune.controller.resume_points import start_under
from memtune.controller.retry_delay import retry_delay
from memtune.controller.trials import is_of_script
from memtune.controller.verdict import Verdict
from memtune.planning.advice import advise
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.ladder import PHASE_OF, OutOfMemoryKind
from memtune.plans.plan import Plan
from memtune.units import counted, gib

# The recovery for each cause: which budget pays for the next run, and how its plan is found.
_Recovery = Callable[[Context, AttemptStatus], Context]


def recovering(context: Context) -> Context:
    """Relaunch a failed run once its pods are gone, nothing forbids it and its retry delay is over; or end the job."""
    last = last_attempt(context.status)
    if last is None:
        return context
    if others_hold_gpus(context):
        return context.saying(f"{ended(last)}; waiting until it has given its GPUs back").waking(LOOK_AGAIN_SECONDS)
    if context.blocked:
        return context.saying(f"{ended(last)}; {context.blocked}")
    delay = retry_delay(context.status.attempts, context.now)
    recovered = _RECOVERIES.get(last.verdict or "", _again)(context, _as_taught(context, last))
    if recovered.holds("Failed") or delay <= 0:
        return recovered
    return context.saying(f"{ended(last)}; the next attempt follows after a pause").waking(delay)


def _as_taught(context: Context, last: AttemptStatus) -> AttemptStatus:
    """Keep the host memory request only if an out-of-memory raised it; a predicted one is specific to that plan."""
    if last.host_request_bytes > host_request(context, plan_of(last), last.resume):
        return last
    return last.model_copy(update={"host_request_bytes": 0})


def _again(context: Context, last: AttemptStatus) -> Context:
    """Retry the same plan for free: the operator stopped the run, or the cluster never let it start."""
    return _relaunched(context, last, Next(plan_of(last), "", *_kept(last)))


def _after_disruption(context: Context, last: AttemptStatus) -> Context:
    """Retry the same plan; the retry counts against maxDisruptions."""
    most = context.job.spec.retry.max_disruptions
    if context.status.disruptions >= most:
        text = f"{ended(last)}; it was relaunched as often as retry.maxDisruptions allows, {counted(most, 'time')}"
        # The earlier failure may be why it hangs.
        before = mistakes(context.status.attempts)
        if before and ended_as(last, Verdict.HUNG):
            text = f"{text}. Before, {ended(before[-1])}"
        return failed(context, reasons.DISRUPTIONS_SPENT, text, last.name)
    return _again(context.having(disruptions=context.status.disruptions + 1), last)


def _after_mistake(context: Context, last: AttemptStatus) -> Context:
    """Retry the same plan once, unless it would fail as well: a second mistake ends the job."""
    if are_hopeless(context, mistakes(context.status.attempts)):
        return failed(context, *last_lines(context, context.status.attempts))
    return _again(context, last)


def _after_oom(context: Context, last: AttemptStatus) -> Context:
    """Launch a smaller plan; the retry counts against maxOomRetries."""
    if _has_spent_retries(context):
        return _retries_spent(context, last)
    knowledge = current_knowledge(context)
    found = after_device_oom(context, knowledge, last)
    if found is None:
        return _exhausted(context, knowledge, last)
    return _relaunched(context.having(oom_retries=context.status.oom_retries + 1), last, found)


def _has_spent_retries(context: Context) -> bool:
    return context.status.oom_retries >= context.job.spec.retry.max_oom_retries


def _retries_spent(context: Context, last: AttemptStatus) -> Context:
    most = context.job.spec.retry.max_oom_retries
    text = f"{ended(last)}; it was relaunched as often as retry.maxOomRetries allows, {counted(most, 'time')}"
    return failed(context, reasons.OOM_RETRIES_SPENT, text, last.name)


def _exhausted(context: Context, knowledge: PlanKnowledge, last: AttemptStatus) -> Context:
    """No plan is left that fits and resumes: say which one would fit, or what would be needed."""
    unresumable = after_device_oom(context, knowledge, last, resumable_only=False)
    if unresumable is not None:
        return _unresumable(context.having(oom_retries=context.status.oom_retries + 1), last, unresumable)
    kind = OutOfMemoryKind(last.out_of_memory or "activation")
    smallest = knowledge.smallest() or plan_of(last)
    phase = PHASE_OF.get(kind, "")
    by_script = script_remedies(context.job.spec.integration, kind, _evaluates_in_small_batches(context, last))
    changes = [] if is_of_script(knowledge, last) else _advice(context, knowledge, smallest, phase)
    advice = "; or ".join([*by_script, *changes])
    text = f"{ended(last)}, and no smaller plan that the job allows would fit. What would help: {advice}"
    return failed(context, reasons.LADDER_EXHAUSTED, text, last.name)


def _evaluates_in_small_batches(context: Context, last: AttemptStatus) -> bool:
    """Whether the evaluation batch cannot shrink further, or shrank after an earlier failure."""
    earlier = [
        each.evaluation_batch
        for each in context.status.attempts
        if each.number < last.number and each.out_of_memory == OutOfMemoryKind.EVALUATION.value
    ]
    return last.evaluation_batch == 1 or 0 < last.evaluation_batch < max(earlier, default=0)


def _advice(context: Context, knowledge: PlanKnowledge, smallest: Plan, phase: str) -> list[str]:
    is_fixed = context.job.spec.tuning.fixed_plan is not None
    return advise(
        knowledge.workload, knowledge.predictor_for, smallest, knowledge.headroom, knowledge.space, is_fixed, phase
    )


def _after_host_oom(context: Context, last: AttemptStatus) -> Context:
    """Request more host memory or offload less; never shrink the batch."""
    if _has_spent_retries(context):
        return _retries_spent(context, last)
    knowledge = current_knowledge(context)
    found = after_host_oom(context, knowledge, last)
    if found is None:
        needed = host_need(knowledge, plan_of(last), last.resume)
        limit = trainer_memory(context.job).limit_bytes
        advice = f", and limits.memory is {gib(limit)}: raise it" if limit else ": use hosts with more"
        text = f"{ended(last)}; it is predicted to need {gib(needed)} of host memory on each node{advice}"
        return failed(context, reasons.HOST_MEMORY, text, last.name)
    return _relaunched(context.having(oom_retries=context.status.oom_retries + 1), last, found)


def _relaunched(context: Context, last: AttemptStatus, found: Next) -> Context:
    start = start_under(context.job, context.status, found.plan)
    if start.resume is None:
        return _unresumable(context, last, found)
    details = {"resume": start.resume, "resumed_samples": start.samples, "restarted_at": last.restarted_at}
    return _recorded(context, found, details)


def _unresumable(context: Context, last: AttemptStatus, found: Next) -> Context:
    """Restart from step 0 only if the user allows it."""
    if context.job.spec.retry.allow_restart:
        return _recorded(context, found, {"resume": "no", "restarted_at": next_number(context.status.attempts)})
    why = start_under(context.job, context.status, found.plan).reason
    is_other = str(found.plan) != last.plan
    words = f"{found.plan} would fit, but the run cannot go on under it" if is_other else "it cannot go on"
    text = f"{ended(last)}; {words}: {why}. Set retry.allowRestart to train from step 0 again"
    return failed(context, reasons.NOT_RESUMABLE, text, last.name)


def _recorded(context: Context, found: Next, details: dict[str, Any]) -> Context:
    return record_attempt(
        context,
        found.plan,
        reasons.RELAUNCHED,
        found.rung,
        evaluation_batch=found.evaluation_batch,
        sharded_save=found.sharded_save,
        host_request_bytes=found.host_request_bytes,
        **details,
    )


def _kept(last: AttemptStatus) -> tuple[int, bool, int]:
    return last.evaluation_batch, last.sharded_save, last.host_request_bytes


_RECOVERIES: dict[str, _Recovery] = {
    Verdict.DEVICE_OOM.value: _after_oom,
    Verdict.HOST_OOM.value: _after_host_oom,
    Verdict.DISRUPTED.value: _after_disruption,
    Verdict.HUNG.value: _after_disruption,
    Verdict.USER_ERROR.value: _after_mistake,
    Verdict.IMAGE_ERROR.value: _after_mistake,
    Verdict.PLAN_NOT_APPLIED.value: _after_mistake,
}
