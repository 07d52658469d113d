"""What a job has to tell, as events that people read beside it."""

from __future__ import annotations

from datetime import datetime, timezone

from memtune.api import API_VERSION, KIND
from memtune.controller import Event
from memtune.wire.names import job_stem, short_hash
from memtune_operator.pods.wrapping import Manifest

# Of the largest revision that etcd can count.
_DIGITS = 19


def event(job: Manifest, told: Event, position: int) -> Manifest:
    """An event on the job, as the API server takes it; ``position`` is its place among those told at the same time.

    The same of the same version of the job has the same name, so that nothing is told twice. Times are whole seconds:
    of events within one, `kubectl describe` keeps the order of the API server's list, which is that of the names.
    """
    metadata = job["metadata"]
    said = f"{metadata['uid']}/{metadata['resourceVersion']}/{told.reason}/{told.message}"
    place = f"{metadata['resourceVersion'].zfill(_DIGITS)}.{position:02}"
    name = f"{job_stem(metadata['name'])}.{place}.{short_hash(said, 16)}"
    told_at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            **{part: metadata[part] for part in ("namespace", "name", "uid", "resourceVersion")},
        },
        "type": told.type,
        "reason": told.reason,
        "message": told.message[:1024],
        "source": {"component": "memtune-operator"},
        "reportingComponent": "memtune.dev/operator",
        "firstTimestamp": told_at,
        "lastTimestamp": told_at,
        "count": 1,
    }
