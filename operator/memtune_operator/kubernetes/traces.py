"""Cached traces of model factories: one ConfigMap per namespace, so that the next job needs no trace run.

A trace that depends on something outside the template, such as code in a volume, is not cached: the job's own trace pod
keeps it. Entries are validated like a pod's report; at worst a prediction is wrong, which the first probe shows.
"""

from __future__ import annotations

from memtune.api import Job
from memtune.memory.traced_model import read_traced
from memtune.wire.trace import TraceError
from memtune_operator.config_map import entry, with_entry
from memtune_operator.kubernetes.client import Client
from memtune_operator.kubernetes.namespace_cache import NamespaceCache
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.pod_reader import image_ids
from memtune_operator.pods.trace_pod import has_foreign_variables, is_trace, key_of
from memtune_operator.pods.wrapped_container import TemplateError

NAME = "memtune-traces"


def recall(kept: Manifest | None, key: str) -> str:
    """The trace under a key; empty if it is missing or invalid."""
    return str(entry(kept, key).get("trace") or "")


def image_of(kept: Manifest | None, key: str) -> str:
    """The image digest at the time of tracing."""
    return str(entry(kept, key).get("imageID") or "")


def remembering(kept: Manifest | None, namespace: str, key: str, trace: str, image_id: str, now: float) -> Manifest:
    """The ConfigMap with one more trace, about 2 kB each."""
    return with_entry(kept, NAME, namespace, key, {"trace": trace, "imageID": image_id}, int(now))


class Traces:
    """Reads and writes the trace ConfigMap of each namespace, for jobs that have a factory."""

    def __init__(self, cluster: Client, runner_image: str) -> None:
        self._cache = NamespaceCache(cluster, NAME)
        self._runner_image = runner_image

    async def recall(self, job: Job, status: Manifest, pods: list[Manifest]) -> str:
        """Return the cached trace of a job's factory, unless the job's pods show that the image has changed.

        Not checked for a job that made the trace itself: nodes may name one image differently.
        """
        if job.spec.model.factory is None:
            return ""
        found, key = await self._cache.read(job.metadata.namespace), key_of(job, self._runner_image)
        traced, seen = image_of(found, key), image_ids(pods)
        if not status.get("trace") and traced and seen and traced not in seen:
            return ""
        return recall(found, key)

    async def remember(self, job: Job, trace: str, pods: list[Manifest], now: float) -> bool:
        """Cache a trace; return whether to observe the job again. If it cannot be shared or written, the trace pod
        keeps it for its own job."""
        if not self._is_shared(job, trace):
            return False
        namespace, key = job.metadata.namespace, key_of(job, self._runner_image)
        image_id = next(iter(image_ids(pod for pod in pods if is_trace(pod))), "")
        return await self._cache.change(
            namespace, lambda found: remembering(found, namespace, key, trace, image_id, now)
        )

    def _is_shared(self, job: Job, trace: str) -> bool:
        """Whether every job with the same key has the same trace: it depends on the template alone."""
        try:
            return not (has_foreign_variables(job, self._runner_image) or read_traced(trace).trace.mounted)
        except (TemplateError, TraceError):
            return False  # the template may have been edited since the trace
