"""Loads a `MemoryTunedJob` from YAML or API data into checked types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from memtune.api.errors import Problem, SpecError, problems_of, shown
from memtune.api.job import Job
from memtune.api.rules import broken_rules

_FOREIGN = ("template", "hfConfig", "factoryArguments")


def load_job(data: Mapping[str, Any]) -> Job:
    """Parse the job, or raise SpecError with everything that is wrong with it."""
    if not isinstance(data, Mapping):
        raise SpecError([Problem("", data, f"{shown(data)} is not a MemoryTunedJob; give an object with a spec")])
    try:
        job = Job.model_validate(as_stored(data))
    except ValidationError as error:
        raise SpecError(problems_of(error, Job)) from None
    if problems := broken_rules(job.spec):
        raise SpecError(problems)
    return job


def as_stored(value: Any) -> Any:
    """A value as the API server stores it: a null is dropped or replaced by the default, 96.0 is stored as 96."""
    if isinstance(value, Mapping):
        return {
            name: inner if name in _FOREIGN else as_stored(inner) for name, inner in value.items() if inner is not None
        }
    if isinstance(value, list):
        return [as_stored(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
