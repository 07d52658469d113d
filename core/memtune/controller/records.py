"""The runs that the status records, how it is read defensively, and the fields of the spec that it holds fixed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from memtune.api.errors import SpecError
from memtune.api.immutable_fields import FIXED
from memtune.api.job import Job
from memtune.api.status import (
    MAX_ATTEMPTS,
    MAX_EMULATIONS,
    MAX_NUMBER,
    AttemptStatus,
    EmulationStatus,
    ProbeStatus,
    RecordStatus,
    RunStatus,
    Status,
    load_status,
    to_seconds,
    to_text,
)
from memtune.api.tuning import MAX_PROBES
from memtune.controller.verdict import Verdict
from memtune.gpus.gpu import GPUS, find
from memtune.planning.ladder import OutOfMemoryKind
from memtune.planning.space import Space
from memtune.plans.plan import Plan
from memtune.wire.names import run_name, short_hash
from memtune.wire.probe_pruning import NOTHING, Target
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
    return record.verdict in verdicts


def plan_of(record: RunStatus) -> Plan:
    """The plan of a record; `restore` only passes records with a readable one."""
    return Plan.parse(record.plan)


def live(status: Status) -> list[RunStatus]:
    """Every recorded run with GPUs that has not ended."""
    return [record for record in (*status.probes, *status.attempts) if not has_ended(record)]


def last_attempt(status: Status) -> AttemptStatus | None:
    """The newest attempt, or None."""
    return status.attempts[-1] if status.attempts else None


def next_number(records: Sequence[RunStatus]) -> int:
    """The number of the next run of a kind. The last record is always kept, so no number is reused."""
    return max((record.number for record in records), default=0) + 1


def counted(probes: Sequence[ProbeStatus], space: Space) -> int:
    """The number of probes that count against maxProbes: also running ones, but none of a plan outside the space."""
    counting = (probe for probe in probes if not has_ended(probe) or ended_as(probe, *COUNTED))
    return sum(1 for probe in counting if space.allows(plan_of(probe)))


def mistakes(records: Sequence[RunStatus]) -> list[RunStatus]:
    """Those of these runs that failed through a mistake in the job. An attempt that hangs is a disruption instead."""
    return [
        record
        for record in records
        if ended_as(record, *MISTAKES) and not (isinstance(record, AttemptStatus) and ended_as(record, Verdict.HUNG))
    ]


def newest_saved(status: Status) -> AttemptStatus | None:
    """The attempt that reported the newest complete checkpoint of this training."""
    return next((record for record in reversed(of_training(status)) if record.checkpoint == "saved"), None)


def of_training(status: Status) -> tuple[AttemptStatus, ...]:
    """The attempts since the training last started from step 0."""
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
    """Add an attempt to the status."""
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


def is_emulating(status: Status) -> bool:
    """Whether an emulated probe has not ended."""
    return any(not has_ended(record) for record in status.emulations)


def without_emulations(status: Status, why: str, now: float) -> Status:
    """End every running emulated probe. It has no verdict: nothing was learned of its plan."""
    stopped = {"ended_at": to_text(now), "message": why}
    emulations = (each if has_ended(each) else each.model_copy(update=stopped) for each in status.emulations)
    return status.model_copy(update={"emulations": tuple(emulations)})


def lost_twice(status: Status) -> tuple[str, ...]:
    """Nodes that took two attempts down."""
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
            evaluation_batch=evaluation_limit(status, record),
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


def evaluation_limit(status: Status, probe: RunStatus) -> int:
    """The largest evaluation batch asked of a probe: its micro-batch, once one had run out in an evaluation; 0 if any.

    Those of earlier jobs teach nothing, because they may be dropped.
    """
    began = to_seconds(probe.started_at)
    ends = [
        to_seconds(each.ended_at)
        for each in status.own_probes
        if each.number < probe.number and each.out_of_memory == OutOfMemoryKind.EVALUATION.value
    ]
    has_run_out = any(end is not None and (began is None or end <= began) for end in ends)
    return plan_of(probe).micro_batch if has_run_out else 0


def has_measured(probe: ProbeStatus) -> bool:
    """Whether a probe says what its plan takes."""
    return ended_as(probe, Verdict.DEVICE_OOM) or (ended_as(probe, Verdict.SUCCEEDED) and probe.peak_bytes is not None)


def has_earlier_probes(status: Status) -> bool:
    """Whether the job goes on from probes of earlier jobs."""
    return any(probe.measured_by for probe in status.probes)


_HASH_CHARACTERS = 12
_GENERATION = "generation"


def fingerprints(job: Job) -> tuple[str, ...]:
    """The generation of the spec, and a hash of each immutable field by name."""
    # A field that a later operator adds has its default in every job that already started.
    spec = job.spec.unpriced.model_dump(mode="json", by_alias=True, include=set(FIXED), exclude_defaults=True)
    written = {name: json.dumps(spec.get(name), sort_keys=True, default=str) for name in sorted(FIXED)}
    return (_generation(job), *(f"{name}.{short_hash(text, _HASH_CHARACTERS)}" for name, text in written.items()))


def changed_fields(job: Job, status: Status) -> list[str]:
    """The immutable fields that changed since the job started."""
    # API servers count every edit; elsewhere the generation is always 0 and says nothing.
    if not status.fixed or (job.metadata.generation and _generation(job) in status.fixed):
        return []
    # Another operator version may have recorded other fields: compare those that both know.
    fixed = dict(each.split(".", 1) for each in status.fixed if "." in each)
    now = dict(each.split(".", 1) for each in fingerprints(job))
    return sorted(name for name in FIXED if name in fixed and fixed[name] != now[name])


def spec_changed(fields: list[str]) -> str:
    """The message about immutable fields that were edited."""
    named = ", ".join(f"spec.{name}" for name in fields)
    return f"{named} cannot change once the job is under way; put it back, or create a new job"


def _generation(job: Job) -> str:
    return f"{_GENERATION}.{job.metadata.generation}"


_LISTS = {"emulations": MAX_EMULATIONS, "probes": MAX_PROBES, "attempts": MAX_ATTEMPTS, "conditions": 8}


def restore(job: Job, status: Status, is_legible: bool = True) -> Status:
    """The records that are valid; the rest is dropped: somebody may have edited them, or another version wrote them.

    If the records are not legible, plans of another batch than the job's are kept: they are from before an edit.
    """
    conditions = {condition.type: condition for condition in status.conditions}
    is_plan = partial(is_plan_of, job) if is_legible else _is_a_plan
    return status.model_copy(
        update={
            "plan": status.plan if status.plan and is_plan(status.plan.name) else None,
            "conditions": tuple(conditions.values()),
            "trace": status.trace if status.trace and _is_named(job, RunKind.TRACE, status.trace) else None,
            "emulations": tuple(
                each for each in _sound(job, RunKind.EMULATE, status.emulations, is_plan) if each.gpu in GPUS
            ),
            "probes": _sound(job, RunKind.PROBE, status.probes, is_plan),
            "attempts": _sound(job, RunKind.TRAIN, status.attempts, is_plan),
        }
    )


def read_status(data: Mapping[str, Any]) -> Status:
    """Every field of the status that has the right type."""
    try:
        return load_status(data)
    except SpecError:
        pass
    readable: dict[str, Any] = {}
    for name, value in data.items() if isinstance(data, Mapping) else ():
        if name in _LISTS and isinstance(value, (list, tuple)):
            readable[name] = [item for item in value if _is_readable(name, [item])][-_LISTS[name] :]
        elif _is_readable(name, value):
            readable[name] = value
    return load_status(readable)


def _is_readable(name: str, value: Any) -> bool:
    try:
        load_status({name: value})
    except SpecError:
        return False
    return True


def _sound(job: Job, kind: RunKind, records: tuple[Record, ...], is_plan: Callable[[str], bool]) -> tuple[Record, ...]:
    """The records with a plan of this job and the name that fits their number, each number once."""
    sound = {r.number: r for r in records if is_plan(r.plan) and _is_named(job, kind, r)}
    return tuple(sound[number] for number in sorted(sound))


def _is_named(job: Job, kind: RunKind, record: RecordStatus) -> bool:
    # No run reaches the last number by itself, and none could follow it.
    return record.number < MAX_NUMBER and record.name == run_name(job.metadata.name, kind, record.number)


def is_plan_of(job: Job, name: str) -> bool:
    """Whether a name is of a plan that trains the job's global batch."""
    return _sequences(name, job.spec.resources.world) == job.spec.training.global_batch_size


# Every decision asks this of every record.
@lru_cache(4096)
def _sequences(name: str, world: int) -> int:
    """The sequences of a step of a plan, 0 if the name is of none."""
    return Plan.parse(name).global_batch(world) if _is_a_plan(name) else 0


def _is_a_plan(name: str) -> bool:
    try:
        Plan.parse(name)
    except ValueError:
        return False
    return True
