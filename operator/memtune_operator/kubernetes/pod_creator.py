"""What the API server is asked to create for the runs of jobs; what it refused is remembered for a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memtune.api import Job
from memtune.controller import Refusal, reasons
from memtune.wire.run import Run, TraceRun
from memtune_operator.backend import Key
from memtune_operator.kubernetes.ages import is_fresh
from memtune_operator.kubernetes.client import Client
from memtune_operator.kubernetes.pod_reader import owned_by, run_of
from memtune_operator.kubernetes.refusals import WEBHOOK_IS_DOWN, Kind, RefusalError
from memtune_operator.pods import names
from memtune_operator.pods.run_objects import run_objects
from memtune_operator.pods.wrapping import Manifest

# Jobs that are held back are looked at every half a minute; then it is asked again.
_AGAIN_SECONDS = 25.0
# What is no fault of the template's; the run that meets it says so.
_NOT_OF_THE_TEMPLATE = ("exceeded quota", WEBHOOK_IS_DOWN, "does not support dry run")


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


class PodCreator:
    """Objects of runs. What is remembered would only be asked for again: nothing is decided by its loss."""

    def __init__(self, cluster: Client, runner_image: str, is_restricted: bool) -> None:
        self._cluster = cluster
        self._runner_image = runner_image
        self._is_restricted = is_restricted
        self._refused: dict[Key, _Refused] = {}
        self._dry_runs: dict[Key, _DryRun] = {}

    def forget(self, key: Key) -> None:
        """A job that is gone."""
        self._refused.pop(key, None)
        self._dry_runs.pop(key, None)

    async def create(self, job: Job, runs: Sequence[Run | TraceRun], now: float) -> bool:
        """POST what is not there; whether something is refused that was not before."""
        before = self.refusal_of(job)
        asked = {names.run_name(job.metadata.name, run.kind, run.number) for run in runs}
        # The wording may differ each time: whatever is said, the next question waits, or each answer asks for another.
        # What an earlier run was refused holds no later one back, and so would not have it looked at again.
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
        """The refusal of a name that another object bears. Now and then it is looked whether it still does."""
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
        """What is known to be refused of this job, not of an earlier one of its name."""
        found = self._refused.get(Key.of(job))
        return found if found and found.uid == job.metadata.uid else None

    async def dry_run(self, job: Job, pod: Manifest, now: float) -> tuple[Refusal, ...]:
        """Whether the API server would take a pod of the job, before the first run: one refusal is asked about anew."""
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
