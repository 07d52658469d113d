"""What of the spec stays as it is once the job is under way, checked for servers that know no CEL rules too."""

from __future__ import annotations

import json
from hashlib import sha256

from memtune.spec.job import Job
from memtune.spec.status import Status
from memtune.spec.transition import FIXED

_HASH_CHARACTERS = 12


def fingerprints(job: Job) -> tuple[str, ...]:
    """A hash of each field that cannot change, by its name."""
    spec = job.spec.model_dump(mode="json", by_alias=True, include=set(FIXED))
    written = {name: json.dumps(value, sort_keys=True, default=str) for name, value in spec.items()}
    return tuple(
        f"{name}.{sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]}" for name, text in sorted(written.items())
    )


def changed_fields(job: Job, status: Status) -> list[str]:
    """The fields that differ from those the job got under way with."""
    if not status.fixed:
        return []
    return sorted({name.partition(".")[0] for name in set(fingerprints(job)) - set(status.fixed)})
