"""The traces of a namespace's factories, where the API server keeps them."""

from __future__ import annotations

import logging

from memtune.spec import Job
from memtune_operator import kept_traces
from memtune_operator.cluster import Cluster
from memtune_operator.observing import image_ids
from memtune_operator.refusals import Kind, RefusalError
from memtune_operator.trace_pod import is_trace, key_of
from memtune_operator.wrapping import Manifest

_log = logging.getLogger("memtune")


class Traces:
    """Reads and writes the one ConfigMap of each namespace, for jobs that have a factory."""

    def __init__(self, cluster: Cluster, runner_image: str) -> None:
        self._cluster = cluster
        self._runner_image = runner_image

    async def recall(self, job: Job, status: Manifest, pods: list[Manifest]) -> str:
        """What is remembered of a job's factory, unless the job's own pods show that the image is another by now.

        A job that has traced it itself looks no further: nodes may differ in how they name one image.
        """
        if job.spec.model.factory is None:
            return ""
        found, key = await self._read(job.metadata.namespace), key_of(job, self._runner_image)
        traced, seen = kept_traces.image_of(found, key), image_ids(pods)
        if not status.get("trace") and traced and seen and traced not in seen:
            return ""
        return kept_traces.recall(found, key)

    async def remember(self, job: Job, trace: str, pods: list[Manifest], now: float) -> bool:
        """Keep a trace; whether it is worth looking again. Without the right to write, the trace's pod stays and keeps
        it for its own job."""
        namespace, key = job.metadata.namespace, key_of(job, self._runner_image)
        image_id = next(iter(image_ids(pod for pod in pods if is_trace(pod))), "")
        try:
            before = await self._read(namespace)
            new = kept_traces.remembering(before, namespace, key, trace, image_id, now)
            await (self._cluster.replace(new) if before else self._cluster.create(new))
        except RefusalError as refusal:
            if refusal.kind in (Kind.CONFLICT, Kind.EXISTS):
                return True
            _log.warning("%s/%s cannot be written: %s", namespace, kept_traces.NAME, refusal.message)
            return False
        return True

    async def _read(self, namespace: str) -> Manifest | None:
        try:
            return await self._cluster.read(kept_traces.API_VERSION, kept_traces.KIND, namespace, kept_traces.NAME)
        except RefusalError as refusal:
            if refusal.kind not in (Kind.ABSENT, Kind.REFUSED):
                raise
            return None
