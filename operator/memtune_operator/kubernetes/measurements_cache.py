"""The measurements of a namespace's jobs, read from its ConfigMap and written to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from memtune.api import Job
from memtune.api.status import ProbeStatus
from memtune.controller import Observed
from memtune.memory.measured_overhead import JobOverhead
from memtune_operator.api_errors import ApiError
from memtune_operator.backend import Snapshot
from memtune_operator.kubernetes.client import Client
from memtune_operator.kubernetes.namespace_cache import NamespaceCache
from memtune_operator.measurements import (
    NAME,
    Subject,
    cached_overhead,
    cached_probes,
    overhead_subject,
    probes_subject,
    product_of,
    with_overhead,
    with_probes,
)
from memtune_operator.pods.trace_pod import image_of

_log = logging.getLogger("memtune")


class MeasurementsCache:
    """Reads and writes the one ConfigMap of each namespace."""

    def __init__(self, cluster: Client, runner_image: str) -> None:
        self._cache = NamespaceCache(cluster, NAME)
        self._runner_image = runner_image

    async def recall(self, snapshot: Snapshot) -> Snapshot:
        """Add the cached measurements to the snapshot. Skipped for a job that may start no pod (its image cannot be
        read) or whose GPU is unknown."""
        job, observed = snapshot.job, snapshot.observed
        if job is None or observed.blockers or not product_of(job, observed):
            return snapshot
        try:
            kept = await self._cache.read(job.metadata.namespace)
        except ApiError as error:
            # It would only make an interval narrower, so the job does not wait for it.
            _log.info("%s/%s cannot be read: %s", job.metadata.namespace, NAME, error.message)
            return snapshot
        if kept is None:
            return snapshot
        found = cached_overhead(kept, self._subject(job, observed))
        earlier = cached_probes(kept, self._probed_subject(job, observed))
        return replace(snapshot, observed=replace(observed, measured_overhead=found, earlier=earlier))

    async def remember(self, snapshot: Snapshot, measured: JobOverhead) -> bool:
        """Cache what a job measured; return whether to observe the job again."""
        assert snapshot.job is not None  # only a parsed job has runs
        namespace, subject = snapshot.job.metadata.namespace, self._subject(snapshot.job, snapshot.observed)
        return await self._cache.change(namespace, lambda kept: with_overhead(kept, namespace, subject, measured))

    async def remember_probes(self, snapshot: Snapshot, probes: Sequence[ProbeStatus], now: float) -> bool:
        """Cache what a job's probes measured; return whether to observe the job again."""
        assert snapshot.job is not None  # only a parsed job has runs
        namespace, subject = snapshot.job.metadata.namespace, self._probed_subject(snapshot.job, snapshot.observed)
        return await self._cache.change(
            namespace,
            lambda kept: with_probes(kept, namespace, subject, probes, int(now)),
        )

    def _probed_subject(self, job: Job, observed: Observed) -> Subject:
        product = product_of(job, observed)
        return probes_subject(job, image_of(job, self._runner_image), product)

    def _subject(self, job: Job, observed: Observed) -> Subject:
        product = product_of(job, observed)
        return overhead_subject(job, image_of(job, self._runner_image), product)
