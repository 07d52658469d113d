"""Phases Pending and Predicting: choose the plan that is predicted best, before using any GPU."""

from __future__ import annotations

from collections.abc import Sequence

from memtune.api import reasons
from memtune.api.status import (
    MAX_COMPONENTS,
    MAX_EMULATIONS,
    ComponentBytes,
    IntervalBytes,
    PlanStatus,
    PredictionStatus,
    line,
    natural,
)
from memtune.controller import budget
from memtune.controller.context import Context
from memtune.controller.fold_observations import keeps_first_product, stopped
from memtune.controller.job_end import completed, failed
from memtune.controller.job_knowledge import current_knowledge
from memtune.controller.messages import predicted
from memtune.controller.observation import only_product
from memtune.controller.product_choice import cheapest, compared
from memtune.controller.records import fingerprints, live, without_emulations
from memtune.controller.tracing import is_unknown, untraced
from memtune.memory.prediction import Interval, percent
from memtune.planning.advice import advise
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.space import Candidate, refusals
from memtune.plans.plan import Plan
from memtune.units import counted, over


def pending(context: Context) -> Context:
    """Start the job once nothing forbids it: from now on most of its spec is immutable."""
    if context.blocked:
        return context
    # A plan launches on the product it was measured on, even if others join the cluster later.
    product = only_product(context.observed.nodes or ()) if keeps_first_product(context.job) else ""
    if context.job.spec.tuning.chooses_product and (offer := cheapest(context)):
        product, text = offer.product, f"the job runs on {offer.product}: {compared(context)}"
        context = context.telling("Normal", reasons.PRODUCT_CHOSEN, text).saying(text)
    return context.having(fixed=fingerprints(context.job), gpu_product=line(product, 63))


def predicting(context: Context) -> Context:
    """Predict every plan; say what the best one takes, or that none can fit."""
    why = f"tuning.mode is {context.job.spec.tuning.mode} now"
    for record in live(context.status):
        context = stopped(context, record, why)
    if context.job.spec.tuning.mode != "Probe":
        context = context.becoming(without_emulations(context.status, why, context.now)).having(probing_ended="")
    if given := context.job.spec.tuning.fixed_plan:
        return _given(context, given)
    if is_unknown(context):
        return _without_trace(context)
    knowledge = current_knowledge(context)
    if not knowledge.is_gpu_known:
        return _without_gpu(context)
    best = best_candidate(knowledge)
    if best is None:
        return _nothing_fits(context, knowledge)
    if context.job.spec.tuning.mode == "PredictOnly":
        return _predicted_only(context, knowledge)
    return with_budget(with_prediction(context, knowledge, best), best)


def _given(context: Context, plan: Plan) -> Context:
    """Mode Fixed launches the job's own plan. A prediction, if there is one, is shown and forbids nothing."""
    if is_unknown(context):
        return _launched(_untraced(context), plan)
    try:
        knowledge = current_knowledge(context)
    except ValueError as error:
        context = context.with_condition("Predicted", False, reasons.MODEL_UNKNOWN, str(error))
    else:
        context = with_prediction(context, knowledge, Candidate(plan, knowledge.predict(plan)))
    return _launched(context, plan)


def _launched(context: Context, plan: Plan) -> Context:
    text = f"{plan} is launched unmeasured, as spec.tuning.plan says"
    context = context.having(plan=PlanStatus(name=str(plan))).with_condition("Tuned", True, reasons.GIVEN, text)
    return context.telling("Normal", reasons.GIVEN, text).saying(text)


def _untraced(context: Context) -> Context:
    why = context.status.trace.message if context.status.trace else ""
    return context.with_condition("Predicted", False, reasons.NOT_TRACED, untraced(context.job, why))


def _without_trace(context: Context) -> Context:
    """Nothing is known of the model, so only probes can tell."""
    context = _untraced(context)
    if context.job.spec.tuning.mode == "Probe":
        return with_budget(context, None).saying("the first probe will tell how much memory the model takes")
    return failed(context, reasons.NOT_TRACED, context.message_of("Predicted"))


def _without_gpu(context: Context) -> Context:
    text = "the GPU's memory is unknown until a run reports it: set resources.gpuMemory"
    context = context.with_condition("Predicted", False, reasons.GPU_UNKNOWN, text)
    if context.job.spec.tuning.mode == "Probe":
        return with_budget(context, None).saying("the first probe will tell how much memory the GPUs have")
    return failed(context, reasons.GPU_UNKNOWN, text)


def best_candidate(knowledge: PlanKnowledge) -> Candidate | None:
    """The best plan that surely fits, else the best that may fit."""
    candidates = knowledge.candidates(())
    return candidates[0] if candidates else None


def with_prediction(context: Context, knowledge: PlanKnowledge, best: Candidate) -> Context:
    """Write the best plan's prediction into the status, and into one line for people."""
    jobs = len(knowledge.workload.overhead_bytes)
    text = predicted(best.plan, best.prediction, knowledge.usable_bytes, context.job.spec.resources.device, jobs)
    context = context.having(prediction=prediction_status(knowledge, best))
    context = context.with_condition("Predicted", True, reasons.PREDICTED, text)
    return context.telling("Normal", reasons.PREDICTED, text).saying(text)


def prediction_status(knowledge: PlanKnowledge, candidate: Candidate) -> PredictionStatus:
    """The prediction of a plan in the status's format."""
    plan, prediction = candidate.plan, candidate.prediction
    parts = prediction.components[:MAX_COMPONENTS]
    return PredictionStatus(
        plan=str(plan),
        peak_phase=_word(prediction.peak_phase),
        device_bytes=IntervalBytes(**_interval(prediction.device)),
        needed_bytes=IntervalBytes(**_interval(prediction.needed)),
        fit_percent=percent(prediction.fit_probability(knowledge.usable_bytes, knowledge.headroom)),
        usable_bytes=knowledge.usable_bytes,
        components=tuple(ComponentBytes(name=_word(part.name), **_interval(part.bytes)) for part in parts),
        tokens_per_second=natural(prediction.tokens_per_second.expected),
    )


def _predicted_only(context: Context, knowledge: PlanKnowledge) -> Context:
    """Mode PredictOnly: the best plan that surely fits; else name the likeliest without choosing it."""
    if not knowledge.ranking.fitting:
        likeliest = knowledge.ranking.likeliest
        context = with_prediction(context, knowledge, Candidate(likeliest.plan, likeliest.prediction))
        text = f"predicted only: no plan is sure to fit; {likeliest.plan} may: it {likeliest.reason}"
        return completed(context.with_condition("Tuned", False, reasons.MAY_FIT, text), reasons.MAY_FIT, text)
    plan, prediction = knowledge.ranking.fitting[0]
    context = with_prediction(context, knowledge, Candidate(plan, prediction))
    speed = natural(prediction.tokens_per_second.expected)
    shown = PlanStatus(
        name=str(plan), hbm=over(prediction.device.expected, knowledge.usable_bytes), tokens_per_second=speed
    )
    words = context.message_of("Predicted")
    text = f"{plan} was chosen unmeasured: {words}"
    context = context.having(plan=shown).with_condition("Tuned", True, reasons.CHOSEN_BY_PREDICTION, text)
    context = context.telling("Normal", reasons.CHOSEN_BY_PREDICTION, text)
    return completed(context, reasons.PREDICTED_ONLY, f"predicted only: {words}")


def nothing_fits(
    context: Context,
    knowledge: PlanKnowledge,
    why: str,
    by_script: Sequence[str] = (),
    untried: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Context:
    """End a job of which no plan fits, and say what would help.

    First ``by_script``, what its script should change, then what to allow so that a plan is tried that was ``untried``.
    Last the ``warnings`` that the runs had.
    """
    smallest = knowledge.smallest()
    if smallest is None:
        barred = "; ".join(refusals(knowledge.workload, knowledge.space)) or "its combinations exclude each other"
        return failed(context, reasons.NOTHING_FITS, f"spec.tuning.space allows no plan: {barred}")
    advice = [*by_script, *untried]
    # Another job is suggested only if neither the script nor an untried plan is known to help.
    if not by_script and not (untried and knowledge.keeps_headroom(smallest)):
        advice += advise(knowledge.workload, knowledge.predictor_for, smallest, knowledge.headroom, knowledge.space)
    warned = f". Warnings: {'; '.join(warnings)}" if warnings else ""
    return failed(context, reasons.NOTHING_FITS, f"{why}. What would help: {'; or '.join(advice)}{warned}")


def _nothing_fits(context: Context, knowledge: PlanKnowledge) -> Context:
    dropped = knowledge.ranking.dropped
    least = f": the smallest plan, {dropped[0].plan}, {dropped[0].reason}" if dropped else ""
    context = context.with_condition(
        "Predicted", True, reasons.NOTHING_FITS, f"no plan that the job allows fits{least}"
    )
    return nothing_fits(context, knowledge, f"no plan that the job allows can fit{least}")


def with_budget(context: Context, best: Candidate | None) -> Context:
    """Say how many probes the budget pays for: before the first one if predictable, else after it."""
    allowed, seconds = context.job.spec.tuning.max_probes, context.job.max_gpu_seconds
    words, pays = f"the first one shows how many {seconds:,} GPU-seconds pay for", 1
    if best:
        pays = budget.pays_for(context, best.plan, best.prediction)
        each = budget.expected_gpu_seconds(context, best.plan, best.prediction)
        words = f"{seconds:,} GPU-seconds pay for about {pays}, at about {each:,.0f} each"
    text = f"up to {counted(allowed, 'probe')} may be made; {words}{_emulating(context)}"
    context = context.having(plan=None, front=(), probing_ended="")
    context = context.with_condition("Tuned", False, reasons.PROBING, text)
    return context.telling("Normal" if pays else "Warning", reasons.BUDGET, text)


def _emulating(context: Context) -> str:
    """Which emulated probes the job gets, if it wants them."""
    if context.job.spec.tuning.emulation == "Never":
        return ""
    if current_knowledge(context).is_gpu_named:
        return f"; up to {counted(MAX_EMULATIONS, 'plan')} are emulated first"
    return "; nothing is emulated, since nothing names the GPU: set resources.gpuProduct"


def _word(name: str) -> str:
    """A name from the model in the status's format."""
    return name.replace(" ", "-")


def _interval(interval: Interval) -> dict[str, int]:
    return {name: natural(getattr(interval, name)) for name in ("lower", "expected", "upper")}
