"""Jobs whose runs are pods of a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from memtune.decide import Deletion, Event, Observed, Owned, Refusal, reasons
from memtune.observation import PodObservation, RunObservation
from memtune.remembered import JobOutside
from memtune.run import Run, TraceRun
from memtune.spec import API_VERSION, KIND, Job, SpecError, load_job
from memtune_operator import gangs, names, preflight
from memtune_operator.ages import is_fresh
from memtune_operator.cache import Cache, NotWatchedError
from memtune_operator.cluster import Cluster
from memtune_operator.events import event
from memtune_operator.kinds import BATCH_JOB, JOB_SET, POD, SERVICE, ObjectKind
from memtune_operator.measurements import Measurements
from memtune_operator.node_list import NodeList
from memtune_operator.nodes import candidates, lost
from memtune_operator.observing import NodesSeen, held_back, index_of, observe, owned_by, owned_through, run_of
from memtune_operator.refusals import Kind, RefusalError
from memtune_operator.settings import Settings
from memtune_operator.shell import Key, Snapshot
from memtune_operator.trace_pod import run_objects
from memtune_operator.traces import Traces
from memtune_operator.wrapping import Manifest

_log = logging.getLogger("memtune")
# Jobs that are held back are looked at every half a minute; then it is asked again.
_AGAIN_SECONDS = 25.0


class _Refused(NamedTuple):
    """What could not be created of which run of which job, and when that was asked."""

    uid: str
    run: str
    refusal: Refusal
    at: float
    manifest: Manifest


class _DryRun(NamedTuple):
    """What the API server said to a pod of which job in which generation, and when that was asked."""

    version: tuple[str, int]
    refusals: tuple[Refusal, ...]
    at: float

    def holds(self, version: tuple[str, int], now: float) -> bool:
        """Whether it need not be asked again: the wording of a refusal may differ each time."""
        return self.version == version and (not self.refusals or is_fresh(self.at, now, _AGAIN_SECONDS))


class ClusterShell:
    """Reads jobs and nodes from the API server, and what jobs own from the watches of its caches."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._nodes = NodeList(cluster, settings.reads_nodes)
        self._traces = Traces(cluster, settings.runner_image)
        self._measurements = Measurements(cluster, settings.runner_image)
        kinds = [POD, SERVICE, *(kind for gang in sorted(settings.gangs) for kind in gangs.KINDS[gang])]
        self._caches = {kind: Cache(kind, settings.namespaces) for kind in kinds}
        # Answers of the API server that would only be asked for again: nothing is decided by their loss.
        self._refused: dict[Key, _Refused] = {}
        self._dry_runs: dict[Key, _DryRun] = {}

    async def follow(self, wake: Callable[[Key], None]) -> None:
        """Keep up with what jobs own, for ever."""
        watches = (cache.follow(self._cluster, wake) for cache in self._caches.values())
        await asyncio.gather(*watches, self._nodes.look_after(self._caches[POD].nodes_by_job, wake))

    async def observe(self, key: Key, now: float) -> Snapshot | None:
        """The job as the API server has it now, and what it owns."""
        try:
            manifest = await self._cluster.read(API_VERSION, KIND, key.namespace, key.name)
        except RefusalError as refusal:
            if refusal.kind is Kind.ABSENT:
                self._refused.pop(key, None)
                self._dry_runs.pop(key, None)
                return None
            raise
        if manifest["metadata"].get("deletionTimestamp"):
            return None
        try:
            job = load_job(manifest)
        except SpecError as error:
            return _unready(manifest, Refusal(reasons.SPEC_INVALID, str(error)))
        try:
            observed = await self._observed(job, manifest, now)
        except NotWatchedError as refusal:
            return _unready(manifest, Refusal(reasons.REFUSED, refusal.message))
        return await self._measurements.recall(Snapshot(manifest, observed, job))

    async def write(self, snapshot: Snapshot, status: Manifest) -> None:
        """A conditional write: the resourceVersion is the one that was read."""
        await self._cluster.replace_status(snapshot.manifest, status)

    async def create(self, snapshot: Snapshot, runs: Sequence[Run | TraceRun], now: float) -> bool:
        """POST what is not there. The first refusal ends the turn of its run: the rest would be refused as well."""
        assert snapshot.job is not None  # only a job that could be read has runs
        before = self._refusal_of(snapshot.job)
        asked = {names.run_name(snapshot.job.metadata.name, run.kind, run.number) for run in runs}
        # The wording may differ each time: whatever is said, the next question waits, or each answer asks for another.
        # What an earlier run was refused holds no later one back, and so would not have it looked at again.
        if before and before.run in asked and is_fresh(before.at, now, _AGAIN_SECONDS):
            return False
        self._refused.pop(_key(snapshot.job), None)
        for run in runs:
            for manifest in run_objects(snapshot.job, run, self._settings.runner_image):
                refusal = await self._create(snapshot.job, manifest)
                if refusal is not None:
                    refused = _Refused(snapshot.job.metadata.uid, run_of(manifest), refusal, now, manifest)
                    self._refused[_key(snapshot.job)] = refused
                    break
        after = self._refusal_of(snapshot.job)
        return after is not None and (before is None or (after.run, after.refusal) != (before.run, before.refusal))

    async def remember_trace(self, snapshot: Snapshot, trace: str, now: float) -> bool:
        """In the namespace's ConfigMap."""
        assert snapshot.job is not None  # only a job that could be read has a factory
        pods = owned_by(await self._caches[POD].of_job(_key(snapshot.job)), snapshot.job.metadata.uid)
        return await self._traces.remember(snapshot.job, trace, pods, now)

    async def remember_measured(self, snapshot: Snapshot, measured: JobOutside) -> bool:
        """In another ConfigMap of the namespace."""
        return await self._measurements.remember(snapshot, measured)

    async def delete(self, snapshot: Snapshot, deletions: Sequence[Deletion]) -> None:
        """Each with its uid as precondition."""
        namespace = snapshot.manifest["metadata"]["namespace"]
        kinds = {str(kind): kind for kind in self._caches}
        for each in deletions:
            kind = kinds[each.kind]
            metadata = {"namespace": namespace, "name": each.name, "uid": each.uid}
            manifest = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}
            await self._cluster.delete(manifest, each.grace_seconds)

    async def tell(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """One event on the job for each. A server that takes none costs nothing but a line in the log."""
        for position, each in enumerate(events):
            try:
                await self._cluster.create(event(snapshot.manifest, each, position))
            except RefusalError as refusal:
                if refusal.kind is not Kind.EXISTS:
                    _log.warning("the event %s could not be told: %s", each.reason, refusal.message)

    async def delete_job(self, snapshot: Snapshot) -> None:
        """What the job owns goes with it."""
        await self._cluster.delete(snapshot.manifest)

    async def _observed(self, job: Job, manifest: Manifest, now: float) -> Observed:
        settings = self._settings
        checked = preflight.check(job, settings.policy, settings.runner_image, settings.gangs)
        found = {kind: await cache.of_job(_key(job)) for kind, cache in self._caches.items()}
        own = {kind: owned_by(each, job.metadata.uid) for kind, each in found.items() if kind != BATCH_JOB}
        pods = own.pop(POD) + _through_job_sets(found, own.get(JOB_SET, []))
        nodes = await self._nodes.known(now, {place for pod in pods if (place := pod["spec"].get("nodeName"))})
        gpu_resource = job.spec.resources.gpu_resource
        refusals = await self._refusals(job, manifest, checked, now)
        return Observed(
            status=_status(manifest),
            runs=self._runs(job, pods, own.get(JOB_SET, []), nodes, now),
            owned=tuple(_owned(kind, each) for kind, owned in own.items() for each in owned),
            nodes=candidates(nodes, checked.pod["spec"], gpu_resource) if nodes is not None and checked.pod else None,
            refusals=refusals,
            trace="" if checked.refusal else await self._traces.recall(job, _status(manifest), pods),
        )

    def _runs(
        self, job: Job, pods: list[Manifest], job_sets: list[Manifest], nodes: list[Manifest] | None, now: float
    ) -> dict[str, RunObservation]:
        patience = job.spec.retry.node_lost_after_seconds
        seen = nodes and NodesSeen(frozenset(node["metadata"]["name"] for node in nodes), lost(nodes, now, patience))
        found: dict[str, list[PodObservation]] = {}
        for pod in pods:
            index = index_of(pod)
            if index is not None:
                one = observe(pod, index, job.spec.resources.gpu_resource, seen or None, now, patience)
                found.setdefault(run_of(pod), []).append(one)
        for job_set in job_sets:
            found.setdefault(run_of(job_set), held_back(job_set))
        refused = self._refusal_of(job)
        if refused:
            found.setdefault(refused.run, [])
        return {
            run: RunObservation(
                tuple(sorted(seen_pods, key=lambda pod: pod.index)),
                refusal=refused.refusal.message if refused and refused.run == run else "",
            )
            for run, seen_pods in found.items()
        }

    async def _refusals(
        self, job: Job, manifest: Manifest, checked: preflight.Preflight, now: float
    ) -> tuple[Refusal, ...]:
        """Everything that forbids any pod of the job."""
        if checked.refusal:
            return (checked.refusal,)
        if taken := await self._name_taken(job, now):
            return (taken,)
        return await self._dry_run(job, manifest, checked.pod, now)

    async def _name_taken(self, job: Job, now: float) -> Refusal | None:
        """The refusal of a name that another object bears. Now and then it is looked whether it still does."""
        refused = self._refusal_of(job)
        if refused is None or refused.refusal.reason != reasons.NAME_TAKEN:
            return None
        if is_fresh(refused.at, now, _AGAIN_SECONDS):
            return refused.refusal
        try:
            found = await self._adopt(job, refused.manifest)
        except RefusalError as refusal:
            if refusal.kind is not Kind.ABSENT:
                raise
            found = None
        if found is None:
            del self._refused[_key(job)]
        else:
            self._refused[_key(job)] = refused._replace(refusal=found, at=now)
        return found

    def _refusal_of(self, job: Job) -> _Refused | None:
        """What is known to be refused of this job, not of an earlier one of its name."""
        found = self._refused.get(_key(job))
        return found if found and found.uid == job.metadata.uid else None

    async def _dry_run(self, job: Job, manifest: Manifest, pod: Manifest | None, now: float) -> tuple[Refusal, ...]:
        """Whether the API server would take a pod of the job, before the first run: one refusal is asked about anew."""
        version, status = (job.metadata.uid, job.metadata.generation), _status(manifest)
        if pod is None or status.get("probes") or status.get("attempts"):
            return ()
        known = self._dry_runs.get(_key(job))
        if known is None or not known.holds(version, now):
            known = _DryRun(version, await self._refused_pod(pod), now)
            self._dry_runs[_key(job)] = known
        return known.refusals

    async def _refused_pod(self, pod: Manifest) -> tuple[Refusal, ...]:
        try:
            await self._cluster.create(pod, dry_run=True)
        except RefusalError as refusal:
            # A quota is no fault of the template's; the run that meets it says so.
            if refusal.kind is Kind.REFUSED and "exceeded quota" not in refusal.message:
                return (Refusal(reasons.TEMPLATE_REJECTED, refusal.message),)
            if refusal.kind not in (Kind.REFUSED, Kind.EXISTS):
                raise
        return ()

    async def _create(self, job: Job, manifest: Manifest) -> Refusal | None:
        """POST one object; why it could not be made, if the user should know."""
        try:
            await self._cluster.create(manifest)
        except RefusalError as refusal:
            if refusal.kind is Kind.EXISTS:
                return await self._adopt(job, manifest)
            if refusal.kind is Kind.REFUSED:
                return Refusal(reasons.REFUSED, refusal.message)
            if refusal.kind is not Kind.ABSENT:
                raise
            if "/" in manifest["apiVersion"]:
                # Else its namespace is going away, and the job with it.
                sentence = f"the cluster does not know {manifest['kind']} of {manifest['apiVersion']}; install it there"
                return Refusal(reasons.REFUSED, sentence)
        return None

    async def _adopt(self, job: Job, manifest: Manifest) -> Refusal | None:
        """What bears the name already is ours, or it goes, or the job cannot go on."""
        metadata = manifest["metadata"]
        name, plan_hash = metadata["name"], metadata["annotations"][names.ANNOTATION_PLAN_HASH]
        found = await self._cluster.read(manifest["apiVersion"], manifest["kind"], metadata["namespace"], name)
        annotations = found["metadata"].get("annotations") or {}
        if found["metadata"].get("deletionTimestamp"):
            raise RefusalError(Kind.RETRY, f"{manifest['kind']} {name} of an earlier life is still terminating")
        if owned_by([found], job.metadata.uid) and annotations.get(names.ANNOTATION_PLAN_HASH) == plan_hash:
            return None
        sentence = f"{manifest['kind']} {name} exists and is not of this job's run; delete it, or rename the job"
        return Refusal(reasons.NAME_TAKEN, sentence)


def _through_job_sets(found: Mapping[ObjectKind, list[Manifest]], job_sets: list[Manifest]) -> list[Manifest]:
    """The pods that a JobSet of the job's has made, by the uids of all that is in between."""
    return owned_through(found[POD], owned_through(found.get(BATCH_JOB, []), job_sets))


def _owned(kind: ObjectKind, manifest: Manifest) -> Owned:
    metadata = manifest["metadata"]
    return Owned(str(kind), metadata["name"], metadata["uid"], run_of(manifest), holds_pods=kind == JOB_SET)


def _unready(manifest: Manifest, problem: Refusal) -> Snapshot:
    return Snapshot(manifest, Observed(status=_status(manifest)), problem=problem)


def _key(job: Job) -> Key:
    return Key(job.metadata.namespace, job.metadata.name)


def _status(manifest: Manifest) -> Manifest:
    status = manifest.get("status")
    return status if isinstance(status, dict) else {}
