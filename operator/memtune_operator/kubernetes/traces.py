"""The traces of a namespace's factories, where the API server keeps them."""

from __future__ import annotations

from memtune.api import Job
from memtune.memory.replay.traced import read_traced
from memtune.wire.trace import TraceError
from memtune_operator.kubernetes import cached_traces as kept_traces
from memtune_operator.kubernetes.client import Client
from memtune_operator.kubernetes.namespace_cache import NamespaceCache
from memtune_operator.kubernetes.pod_reader import image_ids
from memtune_operator.pods.trace_pod import has_foreign_variables, is_trace, key_of
from memtune_operator.pods.wrapping import Manifest, TemplateError


class Traces:
    """Reads and writes the one ConfigMap of each namespace, for jobs that have a factory."""

    def __init__(self, cluster: Client, runner_image: str) -> None:
        self._shelf = NamespaceCache(cluster, kept_traces.NAME)
        self._runner_image = runner_image

    async def recall(self, job: Job, status: Manifest, pods: list[Manifest]) -> str:
        """What is remembered of a job's factory, unless the job's own pods show that the image is another by now.

        A job that has traced it itself looks no further: nodes may differ in how they name one image.
        """
        if job.spec.model.factory is None:
            return ""
        found, key = await self._shelf.read(job.metadata.namespace), key_of(job, self._runner_image)
        traced, seen = kept_traces.image_of(found, key), image_ids(pods)
        if not status.get("trace") and traced and seen and traced not in seen:
            return ""
        return kept_traces.recall(found, key)

    async def remember(self, job: Job, trace: str, pods: list[Manifest], now: float) -> bool:
        """Keep a trace; whether it is worth looking again. Of one that is of no use to others, and without the right to
        write, the trace's pod stays and keeps it for its own job."""
        if not self._is_shared(job, trace):
            return False
        namespace, key = job.metadata.namespace, key_of(job, self._runner_image)
        image_id = next(iter(image_ids(pod for pod in pods if is_trace(pod))), "")
        return await self._shelf.change(
            namespace, lambda found: kept_traces.remembering(found, namespace, key, trace, image_id, now)
        )

    def _is_shared(self, job: Job, trace: str) -> bool:
        """Whether every job of the same key comes to the same trace: it rests on nothing that no template tells."""
        try:
            return not (has_foreign_variables(job, self._runner_image) or read_traced(trace).trace.mounted)
        except (TemplateError, TraceError):
            return False  # a template may be edited after the trace was made
