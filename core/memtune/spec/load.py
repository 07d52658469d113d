"""Reading a `MemoryTunedJob`: from the mapping that YAML or the API server gave, to checked types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from memtune.spec.errors import Problem, SpecError, problems_of, shown
from memtune.spec.job import Job
from memtune.spec.rules import broken_rules

_FOREIGN = ("template", "hfConfig")


def load_job(data: Mapping[str, Any]) -> Job:
    """The job in ``data``, or a SpecError with everything that is wrong with it."""
    if not isinstance(data, Mapping):
        raise SpecError([Problem("", data, f"{shown(data)} is not a MemoryTunedJob; give an object with a spec")])
    try:
        job = Job.model_validate(without_nulls(data))
    except ValidationError as error:
        raise SpecError(problems_of(error, Job)) from None
    if problems := broken_rules(job.spec):
        raise SpecError(problems)
    return job


def without_nulls(value: Any) -> Any:
    """A null means that the field is left out: the API server drops it, or puts the default there."""
    if isinstance(value, Mapping):
        return {
            name: inner if name in _FOREIGN else without_nulls(inner)
            for name, inner in value.items()
            if inner is not None
        }
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
