"""The Kubernetes backend: jobs whose runs are pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from memtune.api import API_VERSION, KIND, Job, SpecError, load_job, reasons
from memtune.api.status import ProbeStatus
from memtune.controller import Blocker, Deletion, JobEvent, Observed, Owned
from memtune.controller.observation import PodObservation, RunObservation
from memtune.memory.measured_overhead import JobOverhead
from memtune.wire.run import Run, TraceRun
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Key, Snapshot
from memtune_operator.kubernetes.client import Client
from memtune_operator.kubernetes.events import event
from memtune_operator.kubernetes.measurements_cache import MeasurementsCache
from memtune_operator.kubernetes.node_list import NodeList
from memtune_operator.kubernetes.nodes import candidates
from memtune_operator.kubernetes.pod_creator import PodCreator
from memtune_operator.kubernetes.traces import Traces
from memtune_operator.kubernetes.watch_cache import Cache, NotWatchedError, Place
from memtune_operator.pods import gangs, preflight
from memtune_operator.pods.kinds import BATCH_JOB, JOB_SET, POD, SERVICE, Manifest, ObjectKind
from memtune_operator.pods.lost_nodes import NodesSeen, lost
from memtune_operator.pods.pod_reader import (
    held_back,
    held_seconds,
    index_of,
    observe,
    owned_by,
    owned_through,
    run_of,
)
from memtune_operator.pods.trace_pod import is_outdated
from memtune_operator.settings import Settings

_log = logging.getLogger("memtune")


class KubernetesBackend:
    """Reads jobs and nodes from the API server, and owned objects from its watch caches."""

    def __init__(self, cluster: Client, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._nodes = NodeList(cluster, settings.reads_nodes)
        self._traces = Traces(cluster, settings.runner_image)
        self._measurements = MeasurementsCache(cluster, settings.runner_image)
        kinds = [POD, SERVICE, *(kind for gang in sorted(settings.gangs) for kind in gangs.KINDS[gang])]
        self._caches = {kind: Cache(kind, settings.namespaces) for kind in kinds}
        self._creations = PodCreator(cluster, settings.runner_image, settings.policy.is_restricted)

    async def follow(self, wake: Callable[[Key], None]) -> None:
        """Watch the objects that jobs own, until cancelled."""
        watches = (cache.follow(self._cluster, wake) for cache in self._caches.values())
        await asyncio.gather(*watches, self._nodes.look_after(self._caches[POD].nodes_by_job, wake))

    async def observe(self, key: Key, now: float) -> Snapshot | None:
        """Return the job as the API server has it now, and the objects it owns."""
        try:
            manifest = await self._cluster.read(API_VERSION, KIND, key.namespace, key.name)
        except ApiError as error:
            if error.kind is ErrorKind.ABSENT:
                self._creations.forget(key)
                self._caches[POD].forget(key)
                return None
            raise
        if manifest["metadata"].get("deletionTimestamp"):
            return None
        try:
            job = load_job(manifest)
        except SpecError as error:
            return _unready(manifest, Blocker(reasons.SPEC_INVALID, str(error)))
        try:
            observed = await self._observed(job, manifest, now)
        except NotWatchedError as error:
            return _unready(manifest, Blocker(reasons.REFUSED, error.message))
        return await self._measurements.recall(Snapshot(manifest, observed, job))

    async def write(self, snapshot: Snapshot, status: Manifest) -> None:
        """Write the status with the resourceVersion that was read."""
        await self._cluster.replace_status(snapshot.manifest, status)

    async def create(self, snapshot: Snapshot, runs: Sequence[Run | TraceRun], now: float) -> bool:
        """POST the missing objects. The first refusal skips the rest of that run, which would be refused as well."""
        assert snapshot.job is not None  # only a parsed job has runs
        return await self._creations.create(snapshot.job, runs, now)

    async def remember_trace(self, snapshot: Snapshot, trace: str, now: float) -> bool:
        """Cache it in the namespace's ConfigMap."""
        assert snapshot.job is not None  # only a parsed job has a factory
        pods = owned_by(await self._caches[POD].of_job(Key.of(snapshot.job)), snapshot.job.metadata.uid)
        return await self._traces.remember(snapshot.job, trace, pods, now)

    async def remember_overhead(self, snapshot: Snapshot, measured: JobOverhead) -> bool:
        """Cache it in the namespace's second ConfigMap."""
        return await self._measurements.remember(snapshot, measured)

    async def remember_probes(self, snapshot: Snapshot, probes: Sequence[ProbeStatus], now: float) -> bool:
        """Cache it in the same ConfigMap as the measurements."""
        return await self._measurements.remember_probes(snapshot, probes, now)

    async def delete(self, snapshot: Snapshot, deletions: Sequence[Deletion]) -> None:
        """Delete each object with its uid as precondition."""
        namespace = snapshot.manifest["metadata"]["namespace"]
        kinds = {str(kind): kind for kind in self._caches}
        for each in deletions:
            kind = kinds[each.kind]
            metadata = {"namespace": namespace, "name": each.name, "uid": each.uid}
            manifest = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}
            await self._cluster.delete(manifest, each.grace_seconds)

    async def tell(self, snapshot: Snapshot, events: Sequence[JobEvent]) -> None:
        """Post one Kubernetes event for each. A failure is only logged."""
        for position, each in enumerate(events):
            try:
                await self._cluster.create(event(snapshot.manifest, each, position))
            except ApiError as error:
                if error.kind is not ErrorKind.EXISTS:
                    _log.warning("the event %s could not be created: %s", each.reason, error.message)

    async def delete_job(self, snapshot: Snapshot) -> None:
        """Delete the job; its owned objects are garbage-collected."""
        await self._cluster.delete(snapshot.manifest)

    async def _observed(self, job: Job, manifest: Manifest, now: float) -> Observed:
        settings = self._settings
        has_attempts = bool(_status(manifest).get("attempts"))
        checked = preflight.check(job, settings.policy, settings.runner_image, settings.gangs, has_attempts)
        found = {kind: await cache.of_job(Key.of(job)) for kind, cache in self._caches.items()}
        own = {kind: owned_by(each, job.metadata.uid) for kind, each in found.items() if kind != BATCH_JOB}
        pods = own.pop(POD) + _through_job_sets(found, own.get(JOB_SET, []))
        nodes = await self._nodes.known(now, {place for pod in pods if (place := pod["spec"].get("nodeName"))})
        resources = job.spec.resources
        needed = None if resources.is_emulated else resources.gpu_resource
        blockers = await self._blockers(job, manifest, checked, now)
        return Observed(
            status=_status(manifest),
            runs=self._runs(job, pods, own.get(JOB_SET, []), nodes, now),
            owned=tuple(_owned(kind, each) for kind, owned in own.items() for each in owned),
            nodes=candidates(nodes, checked.pod["spec"], needed) if nodes is not None and checked.pod else None,
            blockers=blockers,
            seen_going=self._seen_going(job),
            trace="" if checked.blocker else await self._traces.recall(job, _status(manifest), pods),
            gpu_hour_prices=settings.gpu_hour_prices,
        )

    def _seen_going(self, job: Job) -> dict[Place, float]:
        resource = job.spec.resources.gpu_resource
        found = self._caches[POD].seen_going(Key.of(job)).items()
        # No kubelet report means the time is unknown.
        return {place: held for place, seen in found if (held := held_seconds(seen, resource)) is not None}

    def _runs(
        self, job: Job, pods: list[Manifest], job_sets: list[Manifest], nodes: list[Manifest] | None, now: float
    ) -> dict[str, RunObservation]:
        lost_after_seconds = job.spec.retry.node_lost_after_seconds
        seen = nodes and NodesSeen(
            frozenset(node["metadata"]["name"] for node in nodes), lost(nodes, now, lost_after_seconds)
        )
        found: dict[str, list[PodObservation]] = {}
        for pod in pods:
            index = index_of(pod)
            if index is not None:
                one = observe(pod, index, job.spec.resources.gpu_resource, seen or None, now, lost_after_seconds)
                # Objects that belong to no run are deleted.
                run = "" if is_outdated(pod, job, self._settings.runner_image) else run_of(pod)
                found.setdefault(run, []).append(one)
        for job_set in job_sets:
            found.setdefault(run_of(job_set), held_back(job_set))
        rejected = self._creations.rejection_of(job)
        if rejected:
            found.setdefault(rejected.run, [])
        return {
            run: RunObservation(
                tuple(sorted(seen_pods, key=lambda pod: pod.index)),
                rejection=rejected.blocker.message if rejected and rejected.run == run else "",
            )
            for run, seen_pods in found.items()
        }

    async def _blockers(
        self, job: Job, manifest: Manifest, checked: preflight.Preflight, now: float
    ) -> tuple[Blocker, ...]:
        """Every reason why no pod of the job may be created."""
        if checked.blocker:
            return (checked.blocker,)
        if taken := await self._creations.name_taken(job, now):
            return (taken,)
        status = _status(manifest)
        # After one run was accepted, a refusal of a later one is reported by its own creation.
        if checked.pod is None or status.get("probes") or status.get("attempts"):
            return ()
        return await self._creations.dry_run(job, checked.pod, now)


def _through_job_sets(found: Mapping[ObjectKind, list[Manifest]], job_sets: list[Manifest]) -> list[Manifest]:
    """The pods that the job owns through a JobSet, found by following owner uids."""
    return owned_through(found[POD], owned_through(found.get(BATCH_JOB, []), job_sets))


def _owned(kind: ObjectKind, manifest: Manifest) -> Owned:
    metadata = manifest["metadata"]
    return Owned(str(kind), metadata["name"], metadata["uid"], run_of(manifest), holds_pods=kind == JOB_SET)


def _unready(manifest: Manifest, problem: Blocker) -> Snapshot:
    return Snapshot(manifest, Observed(status=_status(manifest)), problem=problem)


def _status(manifest: Manifest) -> Manifest:
    status = manifest.get("status")
    return status if isinstance(status, dict) else {}
