"""Run records in the status: what they mean, and how many are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from memtune.api.job import Job
from memtune.api.status import MAX_ATTEMPTS, AttemptStatus, EmulationStatus, RecordStatus, RunStatus, Status, to_text
from memtune.api.tuning import MAX_PROBES
from memtune.controller.verdict import Verdict
from memtune.gpus.gpu import find
from memtune.plans.plan import Plan
from memtune.wire.names import run_name
from memtune.wire.pruning import NOTHING, Target
from memtune.wire.run import Checkpointed, Run, RunKind

Record = TypeVar("Record", bound=RunStatus)

OUT_OF_MEMORY = (Verdict.DEVICE_OOM, Verdict.HOST_OOM)
# Mistakes in the job, not in the plan or the cluster; the second one ends the job.
MISTAKES = (Verdict.USER_ERROR, Verdict.IMAGE_ERROR, Verdict.PLAN_NOT_APPLIED, Verdict.HUNG)
# Verdicts after which a plan counts as tried.
TRIED = (Verdict.SUCCEEDED, *OUT_OF_MEMORY, *MISTAKES)
# Verdicts of plans that used GPU time.
RAN = (Verdict.SUCCEEDED, *OUT_OF_MEMORY, Verdict.HUNG)
# Verdicts that count against maxProbes: not a probe that was taken away, could not start, or ran without its plan.
COUNTED = (*RAN, Verdict.USER_ERROR)
# This many mistakes of one job are no accident.
MOST_MISTAKES = 2


def has_ended(record: RecordStatus) -> bool:
    """Whether the run ended, or the operator stopped it."""
    return record.ended_at is not None


def is_over(status: Status) -> bool:
    """Whether the job is over, by its conditions."""
    return any(each.type in ("Complete", "Failed") and each.status == "True" for each in status.conditions)


def ended_as(record: RecordStatus, *verdicts: Verdict) -> bool:
    """Whether the run ended with one of these verdicts."""
    return record.verdict is not None and Verdict(record.verdict) in verdicts


def plan_of(record: RunStatus) -> Plan:
    """The plan of a record; `restore` only passes records with a readable one."""
    return Plan.parse(record.plan)


def live(status: Status) -> list[RunStatus]:
    """Every recorded run with GPUs that has not ended."""
    return [record for record in (*status.probes, *status.attempts) if not has_ended(record)]


def last_attempt(status: Status) -> AttemptStatus | None:
    """The newest train run, or None."""
    return status.attempts[-1] if status.attempts else None


def next_number(records: Sequence[RunStatus]) -> int:
    """The number of the next run of a kind. The last record is always kept, so no number is reused."""
    return max((record.number for record in records), default=0) + 1


def counted(probes: Sequence[RunStatus]) -> int:
    """How many probes count against maxProbes, including running ones."""
    return sum(1 for probe in probes if not has_ended(probe) or ended_as(probe, *COUNTED))


def mistakes(records: Sequence[RunStatus]) -> int:
    """How many of these runs failed through a mistake in the job. A train run that hangs is a disruption instead."""
    return sum(
        1
        for record in records
        if ended_as(record, *MISTAKES) and not (isinstance(record, AttemptStatus) and ended_as(record, Verdict.HUNG))
    )


def newest_saved(status: Status) -> AttemptStatus | None:
    """The train run that reported the newest complete checkpoint of this training."""
    return next((record for record in reversed(of_training(status)) if record.checkpoint == "saved"), None)


def of_training(status: Status) -> tuple[AttemptStatus, ...]:
    """The train runs since the training last started from step 0."""
    restarted_at = status.attempts[-1].restarted_at if status.attempts else 0
    return tuple(record for record in status.attempts if record.number >= restarted_at)


def bounded(records: tuple[Record, ...], most: int, needed: RunStatus | None = None) -> tuple[Record, ...]:
    """Keep at most ``most`` records: drop those that taught nothing, then the oldest; never live ones or the last."""
    kept = list(records)
    while len(kept) > most:
        old = [record for record in kept[:-1] if has_ended(record) and record is not needed]
        if not old:
            break
        kept.remove(next((record for record in old if not _has_taught(record)), old[0]))
    return tuple(kept)


def _has_taught(record: RunStatus) -> bool:
    """Whether later runs rely on what this one reported; a hang during training is not the plan's fault."""
    has_hung = ended_as(record, Verdict.HUNG)
    return ended_as(record, *TRIED) and not (has_hung and isinstance(record, AttemptStatus))


def with_probe(status: Status, record: RunStatus) -> Status:
    """Add a probe to the status."""
    return status.model_copy(update={"probes": bounded((*status.probes, record), MAX_PROBES)})


def with_attempt(status: Status, record: AttemptStatus) -> Status:
    """Add a train run to the status."""
    return status.model_copy(
        update={"attempts": bounded((*status.attempts, record), MAX_ATTEMPTS, newest_saved(status))}
    )


def replaced(status: Status, new: RunStatus) -> Status:
    """Replace the record of the same name."""
    return status.model_copy(
        update={
            "probes": tuple(new if record.name == new.name else record for record in status.probes),
            "attempts": tuple(new if record.name == new.name else record for record in status.attempts),
            "emulations": tuple(new if record.name == new.name else record for record in status.emulations),
        }
    )


def without_emulations(status: Status, why: str, now: float) -> Status:
    """End every running emulated probe. It has no verdict: nothing was learned of its plan."""
    stopped = {"ended_at": to_text(now), "message": why}
    emulations = (each if has_ended(each) else each.model_copy(update=stopped) for each in status.emulations)
    return status.model_copy(update={"emulations": tuple(emulations)})


def lost_twice(status: Status) -> tuple[str, ...]:
    """Nodes that took two train runs down."""
    lost = [record.lost_node for record in status.attempts if record.lost_node]
    return tuple(sorted({node for node in lost if lost.count(node) >= 2}))


def new_name(job: Job, kind: RunKind, records: Sequence[RunStatus]) -> tuple[int, str]:
    """Number and name of the next run of a kind."""
    number = next_number(records)
    return number, run_name(job.metadata.name, kind, number)


def to_run(
    job: Job,
    status: Status,
    record: RunStatus,
    host_request_bytes: int,
    probe_seconds: int = 0,
    target: Target = NOTHING,
) -> Run:
    """The run of a record, from which its pods are created."""
    plan = plan_of(record)
    if isinstance(record, EmulationStatus):
        gpu = find(record.gpu).with_memory(record.gpu_bytes)
        return Run(RunKind.EMULATE, record.number, plan, host_request_bytes=host_request_bytes, gpu=gpu)
    if not isinstance(record, AttemptStatus):
        return Run(
            RunKind.PROBE,
            record.number,
            plan,
            gpu_product=status.gpu_product,
            host_request_bytes=host_request_bytes,
            seconds=probe_seconds,
            target=target,
        )
    path = job.spec.checkpoint.path if job.spec.checkpoint else ""
    resume = Checkpointed(path, record.resumed_samples, record.resume == "convert")
    return Run(
        RunKind.TRAIN,
        record.number,
        plan,
        resume=resume if path and record.resume != "no" else None,
        gpu_product=status.gpu_product,
        evaluation_batch=record.evaluation_batch,
        sharded_save=record.sharded_save,
        host_request_bytes=host_request_bytes,
        restarted_at=record.restarted_at,
    )


def stale(probes: Sequence[RunStatus]) -> tuple[RunStatus, ...]:
    """The probes of earlier jobs that ran with another torch or driver than all that this job has made.

    Before it has made any, the newest probe of an earlier job says what it will run with.
    """
    earlier = [probe for probe in probes if probe.measured_by]
    versions = _with_versions(probe for probe in probes if not probe.measured_by and has_measured(probe))
    newest = sorted(_with_versions(earlier), key=lambda probe: probe.ended_at or "")[-1:]
    now = versions or newest
    return tuple(probe for probe in earlier if now and all(_differ(probe, each) for each in now))


def current(probes: Sequence[RunStatus]) -> tuple[RunStatus, ...]:
    """All probes but the stale ones."""
    gone = {probe.number for probe in stale(probes)}
    return tuple(probe for probe in probes if probe.number not in gone)


def has_measured(probe: RunStatus) -> bool:
    """Whether a probe says what its plan takes."""
    return ended_as(probe, Verdict.DEVICE_OOM) or (ended_as(probe, Verdict.SUCCEEDED) and probe.peak_bytes is not None)


def software(probe: RunStatus) -> str:
    """What a probe ran with, in words."""
    driver = f" and driver {probe.driver}" if probe.driver else ""
    return f"torch {probe.torch or 'unknown'}{driver}"


def _with_versions(probes: Iterable[RunStatus]) -> list[RunStatus]:
    return [probe for probe in probes if probe.torch or probe.driver]


def _differ(one: RunStatus, other: RunStatus) -> bool:
    """Whether both tell a version, and not the same: one that died without a report tells none."""
    versions = ((one.torch, other.torch), (one.driver, other.driver))
    return any(a and b and a != b for a, b in versions)
