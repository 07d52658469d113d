"""Which pods to create and which to delete, from the records alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memtune.api.status import AttemptStatus, RecordStatus, RunStatus, Status
from memtune.controller import budget
from memtune.controller.context import Context, Deletion
from memtune.controller.expected_pods import own_pods
from memtune.controller.host_requests import asked_bytes
from memtune.controller.job_knowledge import believed
from memtune.controller.observation import PodObservation
from memtune.controller.plan_choice import next_target
from memtune.controller.records import ended_as, has_ended, is_over, lost_twice, to_run
from memtune.controller.verdict import Verdict
from memtune.wire.pruning import NOTHING, Target
from memtune.wire.run import Run, TraceRun

# How many failed runs keep their terminated pods for their logs.
_KEPT_FAILURES = 2
# A probe has nothing to save.
_PROBE_GRACE_SECONDS = 1


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
                budget.own_seconds(context),
                _target(context, record),
            ),
            avoided_nodes=avoided_nodes(context, record),
        )
        for record in (*context.status.emulations, *context.status.probes, *context.status.attempts)
        if record.name in recorded and not has_ended(record) and not record.created
    )


def _target(context: Context, record: RunStatus) -> Target:
    """What a probe has to beat; nothing for an emulated GPU, which costs nothing.

    Pods of one run that are created at different times may get different targets: only the first rank's counts, and it
    ends no probe that includes a rank without a target.
    """
    probes = context.status.probes
    if record not in probes or record.emulated or not any(ended_as(probe, Verdict.SUCCEEDED) for probe in probes):
        return NOTHING
    return next_target(context.job, believed(context), probes)


def avoided_nodes(context: Context, record: RunStatus) -> tuple[str, ...]:
    """Nodes that took two train runs down, for a third one to avoid, unless it has nowhere else to run."""
    lost, nodes = lost_twice(context.status), context.observed.nodes
    others = {node.name for node in nodes or ()} - set(lost)
    has_others = nodes is None or len(others) >= context.job.spec.resources.pods
    return lost if has_others and isinstance(record, AttemptStatus) else ()


def deletions(context: Context, read: Status) -> tuple[Deletion, ...]:
    """Pods that hold GPUs for nothing, pods not kept for their logs, and everything of no live run."""
    records: dict[str, RecordStatus] = {record.name: record for record in _records(context)}
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


def _records(context: Context) -> list[RecordStatus]:
    trace = context.status.trace
    status = context.status
    return [*([trace] if trace else []), *status.emulations, *status.probes, *status.attempts]


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
    """The runs whose terminated pods stay: the last two that failed, and the train run that succeeded."""
    if context.job.spec.pod_retention == "None":
        return frozenset()
    ended = [record for record in _records(context) if has_ended(record)]
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
