"""The pods that recorded runs should have, which of them to create, and which pods to delete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from memtune.api.job import Job
from memtune.api.status import AttemptStatus, EmulationStatus, RecordStatus, RunStatus, Status, to_seconds
from memtune.controller import budget
from memtune.controller.context import Context, Deletion
from memtune.controller.host_requests import asked_bytes
from memtune.controller.observation import Observed, PodObservation, RunObservation
from memtune.controller.plan_check import checked
from memtune.controller.probe_target import target_of_run
from memtune.controller.records import ended_as, has_ended, is_over, lost_twice, to_run
from memtune.controller.verdict import Verdict
from memtune.wire.run import Run, TraceRun

# The number of failed runs whose terminated pods are kept for their logs.
_KEPT_FAILURES = 2
# A probe has nothing to save.
_PROBE_GRACE_SECONDS = 1
# The time limit of an emulated probe.
EMULATION_SECONDS = 600.0
_NONE = RunObservation(())


def creations(context: Context, read: Status) -> tuple[Run | TraceRun, ...]:
    """The runs that were recorded before this decision, continue after it, and lack pods."""
    trace, before = context.status.trace, read.trace
    if trace and before and before.name == trace.name and not has_ended(trace) and not trace.created:
        return (TraceRun(trace.number), *_creations(context, read))
    return _creations(context, read)


def _creations(context: Context, read: Status) -> tuple[Run, ...]:
    recorded = {record.name for record in (*read.emulations, *read.probes, *read.attempts) if not has_ended(record)}
    return tuple(
        replace(
            to_run(
                context.job,
                context.status,
                record,
                asked_bytes(context, record),
                budget.new_probe_seconds(context),
                target_of_run(context, record),
            ),
            avoided_nodes=avoided_nodes(context, record),
        )
        for record in (*context.status.emulations, *context.status.probes, *context.status.attempts)
        if record.name in recorded and not has_ended(record) and not record.created
    )


def avoided_nodes(context: Context, record: RunStatus) -> tuple[str, ...]:
    """Nodes that took two attempts down, for a third one to avoid, unless it has nowhere else to run."""
    lost, nodes = lost_twice(context.status), context.observed.nodes
    others = {node.name for node in nodes or ()} - set(lost)
    has_others = nodes is None or len(others) >= context.job.spec.resources.pods
    return () if record.is_probe or not has_others else lost


def deletions(context: Context, read: Status) -> tuple[Deletion, ...]:
    """Pods that hold GPUs for nothing, pods not kept for their logs, and everything of no live run."""
    records: dict[str, RecordStatus] = {record.name: record for record in _records(context.status)}
    kept, needed = _kept(context), _needed_trace(context, read)
    found = [
        deletion
        for name, run in sorted(context.observed.runs.items())
        if name != needed
        for pod in run.pods
        for deletion in _of_pod(context, records.get(name), pod, name in kept)
    ]
    over = (each for each in context.observed.owned if _is_over(records.get(each.run)))
    gone = (each for each in over if not (each.holds_pods and each.run in kept and _has_logs(context, each.run)))
    return (*found, *(Deletion(each.kind, each.name, each.uid) for each in gone))


def _records(status: Status) -> list[RecordStatus]:
    trace = [status.trace] if status.trace else []
    return [*trace, *status.emulations, *status.probes, *status.attempts]


def _of_pod(context: Context, record: RecordStatus | None, pod: PodObservation, is_kept: bool) -> Iterator[Deletion]:
    if pod.deleting or not pod.uid or not pod.present:
        return
    if isinstance(record, RunStatus) and not has_ended(record):
        needed = own_pods(context.job, record, context.observed.runs[record.name]).get(pod.index)
        if needed is not pod:
            yield Deletion("Pod", pod.name, pod.uid)
    elif not (is_kept and _is_terminated(pod)):
        is_probe = record is not None and not isinstance(record, AttemptStatus)
        yield Deletion("Pod", pod.name, pod.uid, _PROBE_GRACE_SECONDS if is_probe else None)


def _needed_trace(context: Context, read: Status) -> str:
    """The trace run that goes on, or whose pod alone has the trace until the job's end is written."""
    record = context.status.trace
    if record is None:
        return ""
    is_only = ended_as(record, Verdict.SUCCEEDED) and context.trace != context.observed.trace and not is_over(read)
    return record.name if is_only or not has_ended(record) else ""


def _kept(context: Context) -> frozenset[str]:
    """The runs whose terminated pods stay: the last two that failed, and the attempt that succeeded."""
    if context.job.spec.pod_retention == "None":
        return frozenset()
    ended = [record for record in _records(context.status) if has_ended(record)]
    failed = [record for record in ended if not ended_as(record, Verdict.SUCCEEDED)]
    failed.sort(key=lambda record: (record.ended_at or "", record.name))
    done = [each for each in ended if isinstance(each, AttemptStatus) and ended_as(each, Verdict.SUCCEEDED)]
    return frozenset(record.name for record in (*failed[-_KEPT_FAILURES:], *done))


def _has_logs(context: Context, run: str) -> bool:
    """Whether pods of a run are kept for their logs."""
    seen = context.observed.runs.get(run)
    return seen is not None and any(_is_terminated(pod) for pod in seen.pods)


def _is_terminated(pod: PodObservation) -> bool:
    return pod.phase in ("Succeeded", "Failed")


def _is_over(record: RecordStatus | None) -> bool:
    return record is None or has_ended(record)


class ExpectedRuns(Mapping[str, RunObservation]):
    """Every recorded run with all of its expected pods, present or not.

    A run is only worked out when it is asked for, because most of them have ended and are not.
    """

    def __init__(self, job: Job, status: Status, observed: Observed, now: float) -> None:
        self._records = {record.name: record for record in _records(status)}
        self._job, self._observed, self._now = job, observed, now
        self._found: dict[str, RunObservation] = {}

    def __getitem__(self, name: str) -> RunObservation:
        if name not in self._found:
            self._found[name] = _with_pods(self._job, self._records[name], self._observed, self._now)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


def own_pods(job: Job, record: RunStatus, seen: RunObservation) -> dict[int, PodObservation]:
    """The pod of each index, made for the run's plan. If two claim one index, the one with the right name wins."""
    found: dict[int, PodObservation] = {}
    for pod in sorted(seen.pods, key=lambda pod: (pod.name == f"{record.name}-{pod.index}", pod.uid)):
        # A pod that terminates before the run had all its pods is from an earlier life, or is recreated.
        is_going = pod.deleting and not record.created
        if 0 <= pod.index < _pods_of(job, record) and pod.plan in ("", record.plan) and not is_going:
            found[pod.index] = pod
    return found


def _with_pods(job: Job, record: RecordStatus, observed: Observed, now: float) -> RunObservation:
    seen = observed.runs.get(record.name, _NONE)
    if not isinstance(record, RunStatus):
        return _of_trace(record, seen)
    found = own_pods(job, record, seen)
    pods = tuple(
        _as_reported(job, record, found[index])
        if index in found and (found[index].uid or not record.created)
        else _missing(record, index, observed)
        for index in range(_pods_of(job, record))
    )
    is_probe = record.is_probe
    run = RunObservation(pods, rejection=seen.rejection if not record.created else "", is_probe=is_probe)
    if has_ended(record) or not is_probe:
        return run
    return replace(run, overdue=_is_overdue(job, record, run, now))


def _as_reported(job: Job, record: RunStatus, pod: PodObservation) -> PodObservation:
    return checked(job, record, pod) if pod.report is not None else pod


def _of_trace(record: RecordStatus, seen: RunObservation) -> RunObservation:
    """The trace run with its one pod."""
    pods = [pod for pod in seen.pods if pod.index == 0 and (pod.uid or not record.created)]
    pod = pods[-1] if pods else PodObservation(0, present=not record.created)
    return RunObservation((pod,), rejection=seen.rejection if not record.created else "")


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
