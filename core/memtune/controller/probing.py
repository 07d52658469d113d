"""Phase Probing: measure the few plans worth it, within the budget, until no improvement is expected."""

from __future__ import annotations

from typing import NamedTuple

from memtune import units
from memtune.api import reasons
from memtune.api.status import PlanStatus, ProbeStatus, ProbingEnd, natural
from memtune.api.tuning import MAX_PROBES
from memtune.controller import budget, emulating
from memtune.controller.context import Context, holds_gpus
from memtune.controller.earlier_jobs import unconfirmed, with_earlier, with_stale_marked, without_outdated
from memtune.controller.fold_observations import stopped
from memtune.controller.host_requests import host_request
from memtune.controller.job_end import failed
from memtune.controller.job_knowledge import current_knowledge
from memtune.controller.messages import (
    ended,
    host_request_words,
    measured,
    predicted_memory,
    script_remedies,
    warning,
)
from memtune.controller.mistakes import are_hopeless, last_lines
from memtune.controller.plan_choice import front_of, ranked, winner
from memtune.controller.predicting import best_candidate, nothing_fits, with_budget, with_prediction
from memtune.controller.records import (
    OUT_OF_MEMORY,
    TRIED,
    counted,
    ended_as,
    has_earlier_probes,
    has_ended,
    is_emulating,
    mistakes,
    new_name,
    plan_of,
    with_probe,
)
from memtune.controller.retry_delay import retry_delay
from memtune.controller.trials import is_of_script, may_be_launched, search_state, too_tight
from memtune.controller.verdict import Verdict
from memtune.memory.prediction import Prediction
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.ladder import OutOfMemoryKind
from memtune.planning.next_probe import reason_to_stop
from memtune.plans.plan import Plan
from memtune.units import over
from memtune.wire.run import RunKind


class _EndOfProbing(NamedTuple):
    """Why no further probe is started: the reason in the status, and a message."""

    end: ProbingEnd
    words: str


def probing(context: Context) -> Context:
    """End what exceeds the budget, start what is worth it, and choose when nothing more is."""
    context = _with_earlier_jobs(context)
    if budget.is_spent(context):
        context = _out_of_budget(context)
    probes = context.status.probes
    if (wrong := mistakes(probes)) and are_hopeless(context, wrong):
        return failed(context, *last_lines(context, probes))
    if context.status.disruptions > context.job.spec.retry.max_disruptions:
        text = f"probes were taken away {context.status.disruptions} times, more than retry.maxDisruptions allows"
        return failed(context, reasons.DISRUPTIONS_SPENT, text)
    context = _without_hopeless(context)
    if is_emulating(context.status):
        context = emulating.without_unwanted(context)
    if is_emulating(context.status):
        return _watched(context)
    running = [probe for probe in context.status.probes if not has_ended(probe)]
    earlier = {probe.plan for probe in context.current_probes if probe.measured_by}
    is_confirming = any(probe.plan in earlier for probe in running)
    if running and (is_confirming or _busy(context) >= context.job.spec.tuning.parallel_probes):
        return _watched(context)
    knowledge = current_knowledge(context)
    context = _first_prediction(context, knowledge)
    if not running and (emulated := emulating.instead_of_probes(context, knowledge)) is not None:
        return emulated
    why = _end_of_probing(context, knowledge)
    if why is None:
        more, why = _more(context, knowledge, running)
        if why is None or running or more is not context or context.blocked or _busy(context):
            return _watched(more)
        # Nothing runs, nothing was recorded, and nothing is waited for.
    return _watched(context) if running else _choose(context.having(probing_ended=why.end), knowledge, why.words)


def _with_earlier_jobs(context: Context) -> Context:
    """Begin with the probes of earlier jobs, and keep those that still hold."""
    begins = context.observed.earlier and not context.status.probes
    if not begins and not has_earlier_probes(context.status):
        return context
    return with_stale_marked(without_outdated(with_earlier(context)))


def _out_of_budget(context: Context) -> Context:
    for probe in budget.running(context):
        context = stopped(context, probe, "the budget of GPU-seconds is spent")
    return context


def _without_hopeless(context: Context) -> Context:
    """End a probe that still waits for GPUs once another one shows that its plan cannot fit."""
    probes = context.status.probes
    waiting = [probe for probe in probes if not has_ended(probe) and not _has_started(context, probe)]
    if not waiting or not any(ended_as(probe, Verdict.DEVICE_OOM) for probe in probes):
        return context
    knowledge = current_knowledge(context)
    for probe in waiting:
        if not knowledge.may_try(plan_of(probe)):
            context = stopped(context, probe, "a plan that is predicted to take no more ran out of memory meanwhile")
    return context


def _has_started(context: Context, probe: ProbeStatus) -> bool:
    return any(pod.started_at_seconds is not None for pod in context.pods(probe))


def _first_prediction(context: Context, knowledge: PlanKnowledge) -> Context:
    """If only a run could tell the GPU's memory, predict as soon as one has."""
    best = best_candidate(knowledge) if knowledge.is_known and context.status.prediction is None else None
    return with_budget(with_prediction(context, knowledge, best), best) if best else context


def _end_of_probing(context: Context, knowledge: PlanKnowledge) -> _EndOfProbing | None:
    """Why no further probe is started; None while one may be."""
    allowed, probes = context.job.spec.tuning.max_probes, context.current_probes
    again = unconfirmed(context.job, knowledge, probes)
    # Probes of earlier jobs count as done, but this job probes the plan that it launches.
    if counted(context.status.own_probes if again else probes, knowledge.space) >= allowed:
        earlier = ", with those of earlier jobs" if any(probe.measured_by for probe in probes) else ""
        words = f"tuning.maxProbes allows no more than {units.counted(allowed, 'probe')}{earlier}"
        return _EndOfProbing("max-probes", words)
    if again:
        return _beyond_budget(context, plan_of(again), knowledge.predict(plan_of(again)))
    if len(probes) >= MAX_PROBES and all(ended_as(probe, *TRIED) for probe in probes):
        return _EndOfProbing("max-probes", f"the status has no room for more than {MAX_PROBES} probes")
    asked = search_state(context.job, context.status, knowledge).choice
    if why := reason_to_stop(asked):
        return _EndOfProbing("search", why)
    return _beyond_budget(context, asked.candidates[0].plan, asked.candidates[0].prediction)


def _beyond_budget(context: Context, plan: Plan, prediction: Prediction) -> _EndOfProbing | None:
    """Why the budget pays for no probe of a plan, once what runs has ended; None if it does, or may."""
    if budget.allows(context, plan, prediction) or budget.running_seconds(context):
        return None
    return _EndOfProbing("max-gpu-seconds", budget.shortfall(context, plan, prediction))


def _more(
    context: Context, knowledge: PlanKnowledge, running: list[ProbeStatus]
) -> tuple[Context, _EndOfProbing | None]:
    """Record as many probes as there is room for, one after the other; and why there is not one more, if that is it."""
    if context.blocked or any(not probe.created for probe in running):
        return context, None
    delay = retry_delay(context.status.probes, context.now)
    if delay > 0:
        return context.waking(delay), None
    if again := unconfirmed(context.job, knowledge, context.status.probes):
        return _recorded(context, knowledge, plan_of(again)), None
    while _busy(context) < context.job.spec.tuning.parallel_probes:
        plan = _next_plan(context, knowledge)
        if plan is None or _counted(context, knowledge) >= context.job.spec.tuning.max_probes:
            return context, _EndOfProbing("search", "no plan left is worth a probe")
        if emulating.is_wanted(context, knowledge, plan):
            return emulating.recorded(context, knowledge, plan), None
        if not budget.allows(context, plan, knowledge.predict(plan)):
            return context, _EndOfProbing("max-gpu-seconds", budget.shortfall(context, plan, knowledge.predict(plan)))
        context = _recorded(context, knowledge, plan)
    return context, None


def _counted(context: Context, knowledge: PlanKnowledge) -> int:
    return counted(context.current_probes, knowledge.space)


def _busy(context: Context) -> int:
    """Sets of GPUs in use: by running probes, and by pods of ended probes that still terminate."""
    return sum(
        1
        for probe in context.status.probes
        if not has_ended(probe) or any(holds_gpus(pod) for pod in context.pods(probe))
    )


def _next_plan(context: Context, knowledge: PlanKnowledge) -> Plan | None:
    state = search_state(context.job, context.status, knowledge)
    if knowledge.is_known:
        return context.search(state)
    if any(not has_ended(probe) for probe in context.status.probes):
        return None
    # If any plan runs on an unknown GPU and with an unknown model, the smallest does.
    return min(
        (candidate.plan for candidate in state.choice.candidates),
        key=lambda plan: (knowledge.predict(plan).device.expected, plan),
        default=None,
    )


def _recorded(context: Context, knowledge: PlanKnowledge, plan: Plan) -> Context:
    number, name = new_name(context.job, RunKind.PROBE, context.status.probes)
    prediction = knowledge.predict(plan)
    is_blind = knowledge.workload.assumed and not knowledge.is_known
    expected = 0.0 if is_blind else prediction.device.expected
    emulated = context.job.spec.resources.is_emulated
    record = ProbeStatus(name=name, number=number, plan=str(plan), emulated=emulated, predicted_bytes=natural(expected))
    context = context.becoming(with_probe(context.status, record))
    known = predicted_memory(prediction, knowledge.usable_bytes, knowledge.headroom)
    expectation = "of which nothing is known" if is_blind else known
    verb = "emulates" if emulated else "measures"
    again = next((probe for probe in context.status.probes if probe.measured_by and probe.plan == str(plan)), None)
    before = f", as job {again.measured_by} did" if again else ""
    text = f"probe {number} {verb} {plan}{before}, {expectation}{host_request_words(host_request(context, plan))}"
    return context.telling("Normal", reasons.PROBE_RECORDED, text).saying(text)


def _watched(context: Context) -> Context:
    """Wake when the budget is spent, or when a probe reaches its time limit."""
    return context.waking(budget.running_probes_seconds_left(context)) if budget.running(context) else context


def _choose(context: Context, knowledge: PlanKnowledge, why: str) -> Context:
    """Choose the best measured plan that kept its headroom, or end the job."""
    fit = ranked(context.job, knowledge, context.status.probes)
    own = {probe.plan: probe for probe in context.status.own_probes if may_be_launched(context.job, knowledge, probe)}
    good = [probe for probe in fit if probe.plan in own]
    if not good:
        runs = (*context.status.emulations, *context.status.probes)
        tried = "; ".join(_tried(context, knowledge, run) for run in runs[-3:])
        if not any(
            ended_as(run, Verdict.SUCCEEDED, Verdict.DEVICE_OOM)
            for run in (*context.status.emulations, *context.status.own_probes)
        ):
            if wrong := mistakes(context.status.probes):
                last = context.status.probes[-1]
                after = "" if last == wrong[-1] else f"; {ended(last)}"
                return failed(context, *last_lines(context, context.status.probes, f"No probe is left: {why}{after}"))
            text = f"no probe measured anything: {why}{f' ({tried})' if tried else ''}"
            return failed(context, reasons.NOTHING_MEASURED, text)
        text = f"no plan fits as measured: {why}{f' ({tried})' if tried else ''}"
        outside = [run for run in runs if run.out_of_memory and is_of_script(knowledge, run)]
        kinds = sorted({OutOfMemoryKind(run.out_of_memory) for run in outside})
        remedies = [each for kind in kinds for each in script_remedies(context.job.spec.integration, kind)]
        warnings = dict.fromkeys(warning(run) for run in runs if ended_as(run, Verdict.SUCCEEDED) and warning(run))
        return nothing_fits(context, knowledge, text, remedies, _untried(context, knowledge), tuple(warnings))
    first = winner(context.job, knowledge, good)
    best = own[first.plan]
    device_bytes = best.peak_bytes.device if best.peak_bytes else 0
    speed = best.tokens_per_second or natural(knowledge.predict(plan_of(best)).tokens_per_second.expected)
    plan = PlanStatus(name=best.plan, hbm=over(device_bytes, knowledge.usable_bytes), tokens_per_second=speed)
    speed_words = f", {speed:,} tokens/s predicted" if best.emulated else ""
    fitting = f"{units.counted(len(fit), 'measured plan')} {'fits' if len(fit) == 1 else 'fit'}"
    probes = [probe for probe in context.current_probes if knowledge.space.allows(plan_of(probe))]
    tight = [(probe.number, found) for probe in probes if (found := too_tight(context.job, knowledge, probe))]
    others = "; ".join(f"probe {number} is {found}" for number, found in tight[-3:])
    fitting += f" ({others})" if others else ""
    slack = context.job.spec.tuning.slack
    rule = f" as the smallest within {slack} of the fastest" if slack else ""
    as_before = f", which job {first.measured_by} found best" if first.measured_by else ""
    text = f"{best.plan} won{rule}{as_before}: probe {best.number} {measured(best)}{speed_words}; {fitting}, and {why}"
    context = context.having(plan=plan, front=front_of(context.job, knowledge, good))
    context = context.with_condition("Tuned", True, reasons.MEASURED, text)
    return context.telling("Normal", reasons.MEASURED, text).saying(text)


def _tried(context: Context, knowledge: PlanKnowledge, probe: ProbeStatus) -> str:
    """How a probe ended, and why its plan cannot be launched if that is not obvious.

    A long error or warning would leave no room for the remedy.
    """
    is_long = ended_as(probe, *OUT_OF_MEMORY, Verdict.SUCCEEDED)
    brief = probe.model_copy(update={"message": None}) if is_long else probe
    return ", ".join(filter(None, (ended(brief), too_tight(context.job, knowledge, probe))))


def _untried(context: Context, knowledge: PlanKnowledge) -> list[str]:
    """Advice for a job that may try no more plans although one that may fit is left."""
    left, tuning = search_state(context.job, context.status, knowledge).choice.candidates, context.job.spec.tuning
    if not left:
        return []
    plan, prediction = left[0].plan, left[0].prediction
    if _counted(context, knowledge) >= tuning.max_probes < MAX_PROBES:
        limit = "tuning.maxProbes"
    elif not budget.allows(context, plan, prediction):
        limit = "tuning.maxGpuSeconds"
    else:
        return []
    taken = units.amount(prediction.device.expected, knowledge.usable_bytes)
    return [f"raise {limit}: {plan} was not tried, and is predicted to take {taken} of each GPU"]
