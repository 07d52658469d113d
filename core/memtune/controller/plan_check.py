"""Whether a pod's report is of its run, and whether it shows that the plan was applied."""

from __future__ import annotations

from dataclasses import replace

from memtune.api.job import Job
from memtune.api.status import RunStatus
from memtune.controller.observation import Observed, PodObservation
from memtune.controller.records import plan_of
from memtune.wire.applied import difference
from memtune.wire.report import Report


def checked(job: Job, record: RunStatus, pod: PodObservation) -> PodObservation:
    """The pod, with a mismatch if its report shows another plan applied than requested."""
    pod = _own_report(record, pod)
    if not isinstance(pod.report, Report):
        return pod
    # Without a template the built-in trainer runs, which uses the runner's engine.
    integration = job.spec.integration if job.spec.template is not None else "sdk"
    world = job.spec.resources.world
    # A probe that differs in these has measured another plan; a training that does is not ended for it.
    opened = job.spec.tuning.space.opened if record.is_probe else ()
    found = difference(plan_of(record), pod.report.applied, world, record.is_probe, integration, opened)
    return replace(pod, present=True, mismatch=found)


def _own_report(record: RunStatus, pod: PodObservation) -> PodObservation:
    """Drop the pod's report if it is of another run, or of another plan than recorded."""
    report = pod.report
    if isinstance(report, Report) and (report.run, report.plan) == (record.name, record.plan):
        return pod
    return replace(pod, report=None, failure_order=None, mismatch="")


def has_foreign_report(observed: Observed, record: RunStatus) -> bool:
    """Whether a pod of the run brought a report of another run."""
    seen = observed.runs.get(record.name)
    return seen is not None and any(
        pod.report is not None and _own_report(record, pod).report is None for pod in seen.pods
    )
