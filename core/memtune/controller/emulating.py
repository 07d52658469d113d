"""Emulated probes: measure likely winners on an emulated GPU, in pods without a GPU, before real probes.

Only a script that finished or ran out of memory gives an answer. If an emulated probe ends otherwise, the job continues
without emulation.
"""

from __future__ import annotations

from collections.abc import Sequence

from memtune.api import reasons
from memtune.api.status import (
    MAX_EMULATIONS,
    EmulationStatus,
    PlanStatus,
    ProbeStatus,
    natural,
    sentence,
    to_seconds,
    to_text,
)
from memtune.controller import reported_numbers
from memtune.controller.context import Context
from memtune.controller.fold_observations import out_of_memory
from memtune.controller.messages import ended, measured, predicted_memory, run_words
from memtune.controller.observation import RunObservation
from memtune.controller.plan_choice import winner
from memtune.controller.pods import EMULATION_SECONDS
from memtune.controller.records import ended_as, new_name, plan_of, replaced, without_emulations
from memtune.controller.trials import may_be_launched, score, search_state
from memtune.controller.verdict import Conclusion, Verdict, conclude, waits
from memtune.gpus.driver_overhead import expected_overhead
from memtune.memory.host_memory import emulated_host_bytes
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.next_probe import probability_of_fitting
from memtune.planning.space import MEMORY, Candidate
from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan
from memtune.units import counted, gib, over
from memtune.wire.run import RunKind

# How long its pod may wait for a node, and then for a large image.
_PLACE_SECONDS = 120.0
_START_SECONDS = 900.0
# In mode Only, a plan with a smaller chance to fit is not emulated.
_UNLIKELY = 0.05
_TOLD = (Verdict.SUCCEEDED, Verdict.DEVICE_OOM)


def settled(context: Context, record: EmulationStatus) -> Context:
    """Fold in what was observed of a running emulated probe."""
    run = context.runs[record.name]
    pod = run.pods[0]
    started_at = record.started_at or reported_numbers.started_at(run)
    record = record.model_copy(update={"created": record.created or bool(pod.uid), "started_at": started_at})
    context = context.becoming(replaced(context.status, record))
    conclusion = conclude(run)
    if conclusion is not None and not waits(run):
        return _ended(context, record, run, conclusion)
    if started_at is None and (left := _start_seconds_left(context, record, run)) <= 0:
        said = conclusion.message if conclusion else "its container has not started"
        return _ended(context, record, run, Conclusion(Verdict.UNSCHEDULABLE, 0, f"given up waiting: {said}"))
    began = to_seconds(started_at)
    return context.waking(left if began is None else began + EMULATION_SECONDS - context.now)


def _start_seconds_left(context: Context, record: EmulationStatus, run: RunObservation) -> float:
    recorded = to_seconds(record.recorded_at)
    patience = _START_SECONDS if run.pods[0].node else _PLACE_SECONDS
    # A clock that jumped back must not extend the wait.
    return 0.0 if recorded is None else min(recorded + patience - context.now, patience)


def _ended(context: Context, record: EmulationStatus, run: RunObservation, conclusion: Conclusion) -> Context:
    finished = run.pods[0].finished_at_seconds or context.now
    new = record.model_copy(
        update={
            **reported_numbers.measured(run),
            "step_seconds": reported_numbers.counted_seconds(run),
            "made_up_sizes": reported_numbers.made_up_sizes(run),
            **(out_of_memory(conclusion, run, record) if conclusion.verdict is Verdict.DEVICE_OOM else {}),
            "verdict": str(conclusion.verdict),
            "ended_at": to_text(min(finished, context.now)),
            "message": sentence(conclusion.message),
        }
    )
    context = context.becoming(replaced(context.status, new))
    if ended_as(new, *_TOLD):
        return context.telling("Normal", reasons.EMULATION_ENDED, ended(new))
    text = f"{ended(new)}; the job goes on without emulated probes"
    return context.telling("Warning", reasons.EMULATION_ENDED, text)


def without_unwanted(context: Context) -> Context:
    """End a running emulated probe that the job no longer wants."""
    if context.job.spec.tuning.emulation != "Never":
        return context
    return context.becoming(without_emulations(context.status, "tuning.emulation is Never now", context.now))


def is_wanted(context: Context, knowledge: PlanKnowledge, plan: Plan) -> bool:
    """Whether to emulate a plan before anything else is done with it."""
    records = context.status.emulations
    return (
        context.job.spec.tuning.emulation != "Never"
        and not _is_given_up(records)
        and len(records) < MAX_EMULATIONS
        and knowledge.is_gpu_named
        and plan not in knowledge.measured_bytes
        # The optimizer's work on the host is really done, at its real size.
        and plan.offload is Offload.NONE
        and not any(record.plan == str(plan) and record.verdict is not None for record in records)
    )


def _is_given_up(records: Sequence[ProbeStatus]) -> bool:
    return any(record.verdict is not None and not ended_as(record, *_TOLD) for record in records)


def recorded(context: Context, knowledge: PlanKnowledge, plan: Plan) -> Context:
    """Record the emulated probe of a plan. Its pod is created once the record is written."""
    number, name = new_name(context.job, RunKind.EMULATE, context.status.emulations)
    gpu, prediction = knowledge.workload.gpu, knowledge.predict(plan)
    expected_overhead_bytes = sum(expected_overhead(knowledge.workload.world).values())
    record = EmulationStatus(
        name=name,
        number=number,
        plan=str(plan),
        emulated=True,
        predicted_bytes=natural(prediction.device.expected),
        recorded_at=to_text(context.now),
        gpu=gpu.name,
        # A virtual GPU has nothing outside its allocator, and an emulated one keeps that part free.
        gpu_bytes=natural(gpu.usable_bytes + (expected_overhead_bytes if knowledge.workload.virtual else 0)),
        host_request_bytes=natural(emulated_host_bytes(knowledge.workload, knowledge.predictor, plan)),
    )
    context = context.having(emulations=(*context.status.emulations, record))
    text = (
        f"{run_words(record)}, {predicted_memory(prediction, knowledge.usable_bytes, knowledge.headroom)}, runs on an "
        f"emulated {gpu.name}, with {gib(record.host_request_bytes)} of host memory and no GPU"
    )
    return context.telling("Normal", reasons.EMULATION_RECORDED, text).saying(text)


def instead_of_probes(context: Context, knowledge: PlanKnowledge) -> Context | None:
    """Mode Only: emulate plans that may beat the best emulated fit, then choose; None if nothing fits."""
    if context.job.spec.tuning.emulation != "Only" or _is_given_up(context.status.emulations):
        return None
    plan = _next_likely(context, knowledge)
    if plan is not None:
        return context if context.blocked else recorded(context, knowledge, plan)
    fitting = _fitting(context, knowledge)
    return _chosen(context, knowledge, fitting) if fitting else None


def _fitting(context: Context, knowledge: PlanKnowledge) -> list[EmulationStatus]:
    return [record for record in context.status.emulations if may_be_launched(context.job, knowledge, record)]


def _next_likely(context: Context, knowledge: PlanKnowledge) -> Plan | None:
    choice = search_state(context.job, context.status, knowledge).choice
    best = max((score(context.job, knowledge, record) for record in _fitting(context, knowledge)), default=0.0)
    promises = [
        ((_score(knowledge, candidate) - best) * chance, candidate.plan)
        for candidate in choice.candidates
        if is_wanted(context, knowledge, candidate.plan)
        and (chance := probability_of_fitting(choice, candidate)) > _UNLIKELY
    ]
    most, plan = max(promises, key=lambda promise: promise[0], default=(0.0, None))
    return plan if most > 0 else None


def _score(knowledge: PlanKnowledge, candidate: Candidate) -> float:
    prediction = candidate.prediction
    if knowledge.objective == MEMORY:
        return knowledge.usable_bytes - prediction.device.expected
    return prediction.tokens_per_second.expected


def _chosen(context: Context, knowledge: PlanKnowledge, fitting: Sequence[EmulationStatus]) -> Context:
    best = winner(context.job, knowledge, fitting)
    prediction, device_bytes = knowledge.predict(plan_of(best)), best.peak_bytes.device if best.peak_bytes else 0
    speed = natural(prediction.tokens_per_second.expected)
    plan = PlanStatus(name=best.plan, hbm=over(device_bytes, knowledge.usable_bytes), tokens_per_second=speed)
    fit = f"{counted(len(fitting), 'emulated plan')} {'fits' if len(fitting) == 1 else 'fit'}"
    text = (
        f"{best.plan} is launched without a probe: emulated probe {best.number} {measured(best)}, {speed:,} tokens/s "
        f"predicted; {fit}"
    )
    context = context.having(plan=plan, front=()).with_condition("Tuned", True, reasons.EMULATED, text)
    return context.telling("Normal", reasons.EMULATED, text).saying(text)
