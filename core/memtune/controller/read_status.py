"""Parses a job's status defensively: somebody may have edited it, or another version may have written it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from memtune.api.errors import SpecError
from memtune.api.job import Job
from memtune.api.status import MAX_ATTEMPTS, MAX_EMULATIONS, MAX_NUMBER, RecordStatus, Status, load_status
from memtune.api.tuning import MAX_PROBES
from memtune.controller.records import Record
from memtune.gpus.gpu import GPUS
from memtune.plans.plan import Plan
from memtune.wire.names import run_name
from memtune.wire.run import RunKind

_LISTS = {"emulations": MAX_EMULATIONS, "probes": MAX_PROBES, "attempts": MAX_ATTEMPTS, "conditions": 8}


def restore(job: Job, data: Mapping[str, Any], is_legible: bool = True) -> Status:
    """Everything in the status that is valid; the rest is dropped.

    If the records are not legible, plans of another batch than the job's are kept: they are from before an edit.
    """
    status = read_status(data)
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
    return (
        _is_a_plan(name)
        and Plan.parse(name).global_batch(job.spec.resources.world) == job.spec.training.global_batch_size
    )


def _is_a_plan(name: str) -> bool:
    try:
        Plan.parse(name)
    except ValueError:
        return False
    return True
