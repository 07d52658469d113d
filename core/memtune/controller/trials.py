"""The probes of a job as trials of the search: what each measured, and whether its plan may be launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memtune.api.job import Job
from memtune.api.status import EmulationStatus, ProbeStatus, RunStatus, Status, StepStatus
from memtune.controller.job_knowledge import lesson_of
from memtune.controller.records import OUT_OF_MEMORY, TRIED, ended_as, has_ended, plan_of
from memtune.controller.stale_probes import stale_probes
from memtune.controller.verdict import Verdict
from memtune.memory.prediction import ADMISSION
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.ladder import PHASE_OF, OutOfMemoryKind
from memtune.planning.next_probe import SearchState, Trial
from memtune.planning.space import MEMORY
from memtune.plans.plan import Plan


def search_state(job: Job, status: Status, knowledge: PlanKnowledge) -> SearchState:
    """How far the search for a job's plan is."""
    steps, gone = status.measured_steps, stale_probes(status.probes)
    trials = tuple(
        replace(_as_stale(trial_of(job, knowledge, probe), probe in gone), steps=_scores(job, knowledge, probe, steps))
        for probe in status.probes
    )
    return SearchState(knowledge, trials, f"{job.metadata.uid}/{len(trials) + 1}", job.spec.tuning.sampler)


def trial_of(job: Job, knowledge: PlanKnowledge, probe: ProbeStatus) -> Trial:
    """A probe as the search sees it."""
    has_measured = ended_as(probe, Verdict.SUCCEEDED) and probe.peak_bytes is not None
    fits = _fitted(job, knowledge, probe) if has_measured else False if ended_as(probe, *OUT_OF_MEMORY) else None
    plan = plan_of(probe)
    return Trial(
        number=probe.number,
        plan=plan,
        fits=fits,
        died=ended_as(probe, Verdict.DEVICE_OOM),
        score=score(job, knowledge, probe) if has_measured else 0.0,
        lesson=lesson_of(probe),
        is_running=not has_ended(probe),
        tried=not has_ended(probe) or ended_as(probe, *TRIED),
        free_bytes=free_bytes(knowledge, probe) if has_measured else 0.0,
        pruned=has_measured and bool(probe.pruned),
        closed=not knowledge.space.allows(plan),
    )


def _as_stale(trial: Trial, is_stale: bool) -> Trial:
    """A stale probe's plan may be probed again."""
    if not is_stale:
        return trial
    lesson = replace(trial.lesson, stale=True) if trial.lesson else None
    return replace(trial, lesson=lesson, tried=False, stale=True)


def _scores(
    job: Job, knowledge: PlanKnowledge, probe: ProbeStatus, steps: Sequence[StepStatus]
) -> tuple[tuple[int, float], ...]:
    """The objective after each step of a probe; a speed only if tokens were counted."""
    own, tokens = [step for step in steps if step.probe == probe.number], probe.tokens_per_second * probe.step_seconds
    if job.spec.tuning.objective == MEMORY:
        return tuple((each.step, float(max(knowledge.usable_bytes - each.device_bytes, 0))) for each in own)
    return tuple((each.step, tokens / each.seconds) for each in own if tokens and each.seconds)


def may_be_launched(job: Job, knowledge: PlanKnowledge, probe: ProbeStatus) -> bool:
    """Whether a measured plan may be launched: headroom kept, no allocation retries, and still in the space.

    A probe that never saw the longest sequences, or an emulated one whose sizes of tensors were made up, may
    underestimate: its prediction has to fit as well.
    """
    return knowledge.space.allows(plan_of(probe)) and _fitted(job, knowledge, probe)


def _fitted(job: Job, knowledge: PlanKnowledge, probe: ProbeStatus) -> bool:
    """Whether a plan was measured to fit."""
    is_measured = probe.peak_bytes is not None and probe.peak_bytes.device > 0 and ended_as(probe, Verdict.SUCCEEDED)
    return is_measured and not too_tight(job, knowledge, probe)


def too_tight(job: Job, knowledge: PlanKnowledge, probe: ProbeStatus) -> str:
    """Why a plan that was measured without failing may not be launched; empty if it may."""
    if probe.peak_bytes is None or not ended_as(probe, Verdict.SUCCEEDED):
        return ""
    if probe.allocator_retries:
        return "too tight: the allocator had to retry"
    tuning, device_bytes = job.spec.tuning, probe.peak_bytes.device
    if device_bytes > knowledge.usable_bytes * (1 - tuning.headroom_ratio):
        free = 1 - device_bytes / knowledge.usable_bytes
        return f"too tight: {max(free, 0):.1%} free of {tuning.headroom}"
    if probe.length_covered is False and not _is_predicted_to_fit(knowledge, plan_of(probe)):
        return "too tight for the longest sequences, as predicted"
    if (
        isinstance(probe, EmulationStatus)
        and probe.made_up_sizes
        and not _is_predicted_to_fit(knowledge, plan_of(probe))
    ):
        return "too tight if sizes of tensors are others than the made-up ones, as predicted"
    return ""


def _is_predicted_to_fit(knowledge: PlanKnowledge, plan: Plan) -> bool:
    """Whether a plan fits of which a run did not see all: what all plans of the job share was seen by then."""
    chance = knowledge.predict(plan).probe_probability(knowledge.usable_bytes, knowledge.headroom)
    return knowledge.keeps_headroom(plan) or chance >= ADMISSION


def score(job: Job, knowledge: PlanKnowledge, probe: ProbeStatus) -> float:
    """The measured objective; the predicted speed if no report has one."""
    if job.spec.tuning.objective == MEMORY and probe.peak_bytes:
        return free_bytes(knowledge, probe)
    return float(probe.tokens_per_second) or knowledge.predict(plan_of(probe)).tokens_per_second.expected


def free_bytes(knowledge: PlanKnowledge, probe: ProbeStatus) -> float:
    """The memory that a measured plan left free."""
    return float(max(knowledge.usable_bytes - (probe.peak_bytes.device if probe.peak_bytes else 0), 0))


def is_of_script(knowledge: PlanKnowledge, run: RunStatus) -> bool:
    """Whether a run ran out of memory in an evaluation or a save by what the script keeps there.

    It is in no prediction, so no change of the job is known to make room for it.
    """
    phase = PHASE_OF.get(OutOfMemoryKind(run.out_of_memory)) if run.out_of_memory else None
    predicted = knowledge.predict(plan_of(run)).phases.get(phase) if phase else None
    return predicted is not None and predicted.upper <= knowledge.usable_bytes
