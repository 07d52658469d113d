"""From the pods that exist to the pods that a run should have: each index once, reports of other runs taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memtune.api.job import Job
from memtune.api.status import AttemptStatus, EmulationStatus, RunStatus, Status
from memtune.controller import budget
from memtune.controller.observation import PodObservation, RunObservation
from memtune.controller.records import has_ended, plan_of
from memtune.controller.snapshot import Observed
from memtune.controller.times import to_seconds
from memtune.wire.report import Report
from memtune.wire.script_batch import difference

_NONE = RunObservation(())
# How long an emulated probe may run.
EMULATION_SECONDS = 600.0
IGNORED = "a report of another run or plan was ignored"


def complete(job: Job, status: Status, observed: Observed, now: float) -> Mapping[str, RunObservation]:
    """Every recorded run with all of its pods, whether they are there or not."""
    records = (*status.emulations, *status.probes, *status.attempts)
    return {record.name: _complete(job, record, observed, now) for record in records}


def own_pods(job: Job, record: RunStatus, seen: RunObservation) -> dict[int, PodObservation]:
    """The pod of each index, made for the run's plan. Of two that claim one index it is the one that bears its name."""
    found: dict[int, PodObservation] = {}
    for pod in sorted(seen.pods, key=lambda pod: (pod.name == f"{record.name}-{pod.index}", pod.uid)):
        # One that goes before the run has all its pods is of an earlier life, or is made anew.
        is_going = pod.deleting and not record.created
        if 0 <= pod.index < _pods_of(job, record) and pod.plan in ("", record.plan) and not is_going:
            found[pod.index] = pod
    return found


def _complete(job: Job, record: RunStatus, observed: Observed, now: float) -> RunObservation:
    seen = observed.runs.get(record.name, _NONE)
    found = own_pods(job, record, seen)
    pods = tuple(
        _checked(job, record, found[index])
        if index in found and (found[index].uid or not record.created)
        else _missing(record, index, observed)
        for index in range(_pods_of(job, record))
    )
    is_probe = not isinstance(record, AttemptStatus)
    run = RunObservation(pods, refusal=seen.refusal if not record.created else "", is_probe=is_probe)
    if has_ended(record) or not is_probe:
        return run
    return replace(run, overdue=_is_overdue(job, record, run, now))


def _pods_of(job: Job, record: RunStatus) -> int:
    """How many pods a run has: one for all ranks that are emulated."""
    return 1 if isinstance(record, EmulationStatus) else job.spec.resources.pods


def _is_overdue(job: Job, record: RunStatus, run: RunObservation, now: float) -> bool:
    if not isinstance(record, EmulationStatus):
        return budget.is_overdue(job, run, now)
    started = to_seconds(record.started_at)
    return started is not None and now - started > EMULATION_SECONDS


def _missing(record: RunStatus, index: int, observed: Observed) -> PodObservation:
    """A pod that is not there: not yet, or not any more."""
    held = observed.seen_going.get((record.name, index))
    return PodObservation(index, present=not record.created, held_seconds=held)


def _checked(job: Job, record: RunStatus, pod: PodObservation) -> PodObservation:
    """The pod as it is, and where its report saw another plan applied than the one asked for."""
    pod = _own_report(record, pod)
    if not isinstance(pod.report, Report):
        return pod
    is_probe = not isinstance(record, AttemptStatus)
    # Without a template the built-in trainer runs, which goes through the runner's engine.
    integration = job.spec.integration if job.spec.template is not None else "sdk"
    world = job.spec.resources.world
    found = difference(plan_of(record), pod.report.applied, world, is_probe, integration)
    return replace(pod, present=True, mismatch=found)


def _own_report(record: RunStatus, pod: PodObservation) -> PodObservation:
    """The pod without a report that is of another run, or of another plan than the run was recorded with."""
    report = pod.report
    if isinstance(report, Report) and (report.run, report.plan) == (record.name, record.plan):
        return pod
    return replace(pod, report=None, failure_order=None, mismatch="")


def has_foreign_report(observed: Observed, record: RunStatus) -> bool:
    """Whether a pod of the run brought a report that is not the run's."""
    pods = observed.runs.get(record.name, _NONE).pods
    return any(pod.report is not None and _own_report(record, pod).report is None for pod in pods)
