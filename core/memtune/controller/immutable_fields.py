"""Spec fields that are immutable once the job started; also enforced on servers without CEL rules."""

from __future__ import annotations

import json

from memtune.api.job import Job
from memtune.api.status import Status
from memtune.api.transition import FIXED
from memtune.wire.names import short_hash

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
