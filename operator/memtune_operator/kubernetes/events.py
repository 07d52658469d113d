"""Kubernetes events of a job, as `kubectl describe` shows them. `KubernetesBackend.tell` posts them."""

from __future__ import annotations

from datetime import datetime, timezone

from memtune.api import API_VERSION, KIND
from memtune.controller import JobEvent
from memtune.wire.names import job_stem, short_hash
from memtune_operator.pods.kinds import Manifest

# The digits of the largest etcd revision.
_DIGITS = 19


def event(job: Manifest, job_event: JobEvent, position: int) -> Manifest:
    """The Event object; ``position`` is its place among the events of one decision.

    The name is a function of the event and the job's resourceVersion, so that no event is posted twice. Event times are
    whole seconds: within one, `kubectl describe` keeps the order of the API server's list, which sorts by name.
    """
    metadata = job["metadata"]
    said = f"{metadata['uid']}/{metadata['resourceVersion']}/{job_event.reason}/{job_event.message}"
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
        "type": job_event.type,
        "reason": job_event.reason,
        "message": job_event.message[:1024],
        "source": {"component": "memtune-operator"},
        "reportingComponent": "memtune.dev/operator",
        "firstTimestamp": told_at,
        "lastTimestamp": told_at,
        "count": 1,
    }
