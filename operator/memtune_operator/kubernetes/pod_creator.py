"""Creates the objects of runs and remembers for a while what the API server refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memtune.api import Job, reasons
from memtune.controller import Refusal
from memtune.wire.run import Run, TraceRun
from memtune_operator.backend import Key
from memtune_operator.kubernetes.api_errors import WEBHOOK_IS_DOWN, Kind, RefusalError
from memtune_operator.kubernetes.client import Client, is_fresh
from memtune_operator.kubernetes.pod_reader import owned_by, run_of
from memtune_operator.pods import names
from memtune_operator.pods.run_objects import run_objects
from memtune_operator.pods.wrapping import Manifest

# A refused creation is retried when its job is reconciled, every 30 s.
_AGAIN_SECONDS = 25.0
# Refusals that the template did not cause; the run that meets one reports it.
_NOT_OF_THE_TEMPLATE = ("exceeded quota", WEBHOOK_IS_DOWN, "does not support dry run")


class _Refused(NamedTuple):
    """A refused creation: of which run of which job, and when it was tried."""

    uid: str
    run: str
    refusal: Refusal
    at: float
    manifest: Manifest


class _DryRun(NamedTuple):
    """The answer to a dry run of a job's pod, with the job's generation and the time."""

    version: tuple[str, int]
    refusals: tuple[Refusal, ...]
    at: float

    def holds(self, version: tuple[str, int], now: float) -> bool:
        """Whether the answer can be reused. Refusal messages may differ each time, so they are not compared."""
        return self.version == version and (not self.refusals or is_fresh(self.at, now, _AGAIN_SECONDS))


class PodCreator:
    """Creates the objects of runs. Its memory is only a cache: losing it costs requests, not decisions."""

    def __init__(self, cluster: Client, runner_image: str, is_restricted: bool) -> None:
        self._cluster = cluster
        self._runner_image = runner_image
        self._is_restricted = is_restricted
        self._refused: dict[Key, _Refused] = {}
        self._dry_runs: dict[Key, _DryRun] = {}

    def forget(self, key: Key) -> None:
        """Drop the records of a deleted job."""
        self._refused.pop(key, None)
        self._dry_runs.pop(key, None)

    async def create(self, job: Job, runs: Sequence[Run | TraceRun], now: float) -> bool:
        """POST the missing objects; return whether there is a new refusal."""
        before = self.refusal_of(job)
        asked = {names.run_name(job.metadata.name, run.kind, run.number) for run in runs}
        # Messages may differ each time, so a changed message is not news: it would trigger the next request at once.
        # A refusal of an earlier run does not hold back a later one, so it would not trigger another reconcile.
        if before and before.run in asked and is_fresh(before.at, now, _AGAIN_SECONDS):
            return False
        self._refused.pop(Key.of(job), None)
        for run in runs:
            for manifest in run_objects(job, run, self._runner_image, self._is_restricted):
                refusal = await self._create(job, manifest)
                if refusal is not None:
                    refused = _Refused(job.metadata.uid, run_of(manifest), refusal, now, manifest)
                    self._refused[Key.of(job)] = refused
                    break
        after = self.refusal_of(job)
        return after is not None and (before is None or (after.run, after.refusal) != (before.run, before.refusal))

    async def name_taken(self, job: Job, now: float) -> Refusal | None:
        """The refusal because of a name conflict, rechecked from time to time."""
        refused = self.refusal_of(job)
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
            del self._refused[Key.of(job)]
        else:
            self._refused[Key.of(job)] = refused._replace(refusal=found, at=now)
        return found

    def refusal_of(self, job: Job) -> _Refused | None:
        """The refusal of this job (by uid), not of an earlier job of the same name."""
        found = self._refused.get(Key.of(job))
        return found if found and found.uid == job.metadata.uid else None

    async def dry_run(self, job: Job, pod: Manifest, now: float) -> tuple[Refusal, ...]:
        """Ask the API server before the first run whether it would accept a pod of the job; a refusal is rechecked."""
        key, version = Key.of(job), (job.metadata.uid, job.metadata.generation)
        known = self._dry_runs.get(key)
        if known is None or not known.holds(version, now):
            known = self._dry_runs[key] = _DryRun(version, await self._refused_pod(pod), now)
        return known.refusals

    async def _refused_pod(self, pod: Manifest) -> tuple[Refusal, ...]:
        try:
            await self._cluster.create(pod, dry_run=True)
        except RefusalError as refusal:
            if refusal.kind is Kind.REFUSED and not any(words in refusal.message for words in _NOT_OF_THE_TEMPLATE):
                return (Refusal(reasons.TEMPLATE_REJECTED, refusal.message),)
            if refusal.kind not in (Kind.REFUSED, Kind.EXISTS):
                raise
        return ()

    async def _create(self, job: Job, manifest: Manifest) -> Refusal | None:
        """POST one object; return why it was refused, if the user should know."""
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
                # Otherwise the namespace is terminating, and the job with it.
                sentence = f"the cluster does not know {manifest['kind']} of {manifest['apiVersion']}; install it there"
                return Refusal(reasons.REFUSED, sentence)
        return None

    async def _adopt(self, job: Job, manifest: Manifest) -> Refusal | None:
        """Handle a name conflict: adopt our own object, delete a stale one, or return a refusal."""
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
