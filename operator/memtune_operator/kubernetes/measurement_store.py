"""Reads and writes the cached measurements of a namespace through the API server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from memtune.api import Job
from memtune.api.status import RunStatus
from memtune.controller import Observed
from memtune.memory.measured_overhead import JobOutside
from memtune_operator.backend import Snapshot
from memtune_operator.kubernetes import measurement_entries
from memtune_operator.kubernetes.api_errors import RefusalError
from memtune_operator.kubernetes.cache_config_map import CacheConfigMap
from memtune_operator.kubernetes.client import Client
from memtune_operator.pods.trace_pod import image_of

_log = logging.getLogger("memtune")


class Measurements:
    """Reads and writes the one ConfigMap of each namespace."""

    def __init__(self, cluster: Client, runner_image: str) -> None:
        self._cache = CacheConfigMap(cluster, measurement_entries.NAME)
        self._runner_image = runner_image

    async def recall(self, snapshot: Snapshot) -> Snapshot:
        """Add the cached measurements to the snapshot. Skipped for a job that may start no pod (its image cannot be
        read) or whose GPU is unknown."""
        job, observed = snapshot.job, snapshot.observed
        if job is None or observed.refusals or not measurement_entries.product_of(job, observed):
            return snapshot
        try:
            kept = await self._cache.read(job.metadata.namespace)
        except RefusalError as refusal:
            # It would only make an interval narrower, so the job does not wait for it.
            _log.info("%s/%s cannot be read: %s", job.metadata.namespace, measurement_entries.NAME, refusal.message)
            return snapshot
        if kept is None:
            return snapshot
        found = measurement_entries.recall(kept, self._subject(job, observed))
        earlier = measurement_entries.recall_probes(kept, self._probed_subject(job, observed))
        return replace(snapshot, observed=replace(observed, remembered=found, earlier=earlier))

    async def remember(self, snapshot: Snapshot, measured: JobOutside) -> bool:
        """Cache what a job measured; return whether to observe the job again."""
        assert snapshot.job is not None  # only a parsed job has runs
        namespace, subject = snapshot.job.metadata.namespace, self._subject(snapshot.job, snapshot.observed)
        return await self._cache.change(
            namespace, lambda kept: measurement_entries.remembering(kept, namespace, subject, measured)
        )

    async def remember_probes(self, snapshot: Snapshot, probes: Sequence[RunStatus], now: float) -> bool:
        """Cache what a job's probes measured; return whether to observe the job again."""
        assert snapshot.job is not None  # only a parsed job has runs
        namespace, subject = snapshot.job.metadata.namespace, self._probed_subject(snapshot.job, snapshot.observed)
        return await self._cache.change(
            namespace,
            lambda kept: measurement_entries.remembering_probes(kept, namespace, subject, probes, int(now)),
        )

    def _probed_subject(self, job: Job, observed: Observed) -> measurement_entries.Subject:
        product = measurement_entries.product_of(job, observed)
        return measurement_entries.probed_subject(job, image_of(job, self._runner_image), product)

    def _subject(self, job: Job, observed: Observed) -> measurement_entries.Subject:
        product = measurement_entries.product_of(job, observed)
        return measurement_entries.subject(job, image_of(job, self._runner_image), product)
