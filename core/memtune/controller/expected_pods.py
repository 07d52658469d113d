"""The pods that each recorded run should have, whether they exist or not; reports of other runs are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memtune.api.job import Job
from memtune.api.status import AttemptStatus, EmulationStatus, RunStatus, Status, to_seconds
from memtune.controller import budget
from memtune.controller.observation import Observed, PodObservation, RunObservation
from memtune.controller.records import has_ended, plan_of
from memtune.wire.report import Report
from memtune.wire.script_batch import difference

_NONE = RunObservation(())
# The time limit of an emulated probe.
EMULATION_SECONDS = 600.0
IGNORED = "a report of another run or plan was ignored"


def with_expected_pods(job: Job, status: Status, observed: Observed, now: float) -> Mapping[str, RunObservation]:
    """Every recorded run with all of its expected pods, present or not."""
    records = (*status.emulations, *status.probes, *status.attempts)
    return {record.name: _with_pods(job, record, observed, now) for record in records}


def own_pods(job: Job, record: RunStatus, seen: RunObservation) -> dict[int, PodObservation]:
    """The pod of each index, made for the run's plan. If two claim one index, the one with the right name wins."""
    found: dict[int, PodObservation] = {}
    for pod in sorted(seen.pods, key=lambda pod: (pod.name == f"{record.name}-{pod.index}", pod.uid)):
        # A pod that terminates before the run had all its pods is from an earlier life, or is recreated.
        is_going = pod.deleting and not record.created
        if 0 <= pod.index < _pods_of(job, record) and pod.plan in ("", record.plan) and not is_going:
            found[pod.index] = pod
    return found


def _with_pods(job: Job, record: RunStatus, observed: Observed, now: float) -> RunObservation:
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
    """The number of pods of a run; an emulated run has one for all ranks."""
    return 1 if isinstance(record, EmulationStatus) else job.spec.resources.pods


def _is_overdue(job: Job, record: RunStatus, run: RunObservation, now: float) -> bool:
    if not isinstance(record, EmulationStatus):
        return budget.is_overdue(job, run, now)
    started = to_seconds(record.started_at)
    return started is not None and now - started > EMULATION_SECONDS


def _missing(record: RunStatus, index: int, observed: Observed) -> PodObservation:
    """A pod that does not exist: not yet, or no longer."""
    held = observed.seen_going.get((record.name, index))
    return PodObservation(index, present=not record.created, held_seconds=held)


def _checked(job: Job, record: RunStatus, pod: PodObservation) -> PodObservation:
    """The pod, with a mismatch if its report shows another plan applied than requested."""
    pod = _own_report(record, pod)
    if not isinstance(pod.report, Report):
        return pod
    is_probe = not isinstance(record, AttemptStatus)
    # Without a template the built-in trainer runs, which uses the runner's engine.
    integration = job.spec.integration if job.spec.template is not None else "sdk"
    world = job.spec.resources.world
    found = difference(plan_of(record), pod.report.applied, world, is_probe, integration)
    return replace(pod, present=True, mismatch=found)


def _own_report(record: RunStatus, pod: PodObservation) -> PodObservation:
    """Drop the pod's report if it is of another run, or of another plan than recorded."""
    report = pod.report
    if isinstance(report, Report) and (report.run, report.plan) == (record.name, record.plan):
        return pod
    return replace(pod, report=None, failure_order=None, mismatch="")


def has_foreign_report(observed: Observed, record: RunStatus) -> bool:
    """Whether a pod of the run brought a report of another run."""
    pods = observed.runs.get(record.name, _NONE).pods
    return any(pod.report is not None and _own_report(record, pod).report is None for pod in pods)
