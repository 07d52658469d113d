"""Creates the objects of runs and remembers for a while what the API server refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memtune.api import Job, reasons
from memtune.controller import Blocker
from memtune.controller.stalled import AGAIN_SECONDS
from memtune.wire.names import run_name
from memtune.wire.run import Run, TraceRun
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Key
from memtune_operator.kubernetes.client import Client, is_fresh
from memtune_operator.pods import names
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.pod_reader import owned_by, run_of
from memtune_operator.pods.run_objects import run_objects

# Within this time a refused creation is not tried again: its job is decided anew a little later.
_REFUSED_SECONDS = AGAIN_SECONDS - 5.0


class _Rejected(NamedTuple):
    """A refused creation: of which run of which job, and when it was tried."""

    uid: str
    run: str
    blocker: Blocker
    at: float
    manifest: Manifest


class _DryRun(NamedTuple):
    """The answer to a dry run of a job's pod, with the job's generation and the time."""

    version: tuple[str, int]
    blockers: tuple[Blocker, ...]
    at: float

    def holds(self, version: tuple[str, int], now: float) -> bool:
        """Whether the answer can be reused. Blocker messages may differ each time, so they are not compared."""
        return self.version == version and (not self.blockers or is_fresh(self.at, now, _REFUSED_SECONDS))


class PodCreator:
    """Creates the objects of runs. Its memory is only a cache: losing it costs requests, not decisions."""

    def __init__(self, cluster: Client, runner_image: str, is_restricted: bool) -> None:
        self._cluster = cluster
        self._runner_image = runner_image
        self._is_restricted = is_restricted
        self._rejected: dict[Key, _Rejected] = {}
        self._dry_runs: dict[Key, _DryRun] = {}

    def forget(self, key: Key) -> None:
        """Drop the records of a deleted job."""
        self._rejected.pop(key, None)
        self._dry_runs.pop(key, None)

    async def create(self, job: Job, runs: Sequence[Run | TraceRun], now: float) -> bool:
        """POST the missing objects; return whether there is a new rejection."""
        before = self.rejection_of(job)
        asked = {run_name(job.metadata.name, run.kind, run.number) for run in runs}
        # Messages may differ each time, so a changed message is not news: it would trigger the next request at once.
        # A rejection of an earlier run does not hold back a later one, so it would not trigger another reconcile.
        if before and before.run in asked and is_fresh(before.at, now, _REFUSED_SECONDS):
            return False
        self._rejected.pop(Key.of(job), None)
        for run in runs:
            for manifest in run_objects(job, run, self._runner_image, self._is_restricted):
                blocker = await self._create(job, manifest)
                if blocker is not None:
                    rejected = _Rejected(job.metadata.uid, run_of(manifest), blocker, now, manifest)
                    self._rejected[Key.of(job)] = rejected
                    break
        after = self.rejection_of(job)
        return after is not None and (before is None or (after.run, after.blocker) != (before.run, before.blocker))

    async def name_taken(self, job: Job, now: float) -> Blocker | None:
        """The rejection because of a name conflict, rechecked from time to time."""
        rejected = self.rejection_of(job)
        if rejected is None or rejected.blocker.reason != reasons.NAME_TAKEN:
            return None
        if is_fresh(rejected.at, now, _REFUSED_SECONDS):
            return rejected.blocker
        try:
            found = await self._adopt(job, rejected.manifest)
        except ApiError as error:
            if error.kind is not ErrorKind.ABSENT:
                raise
            found = None
        if found is None:
            del self._rejected[Key.of(job)]
        else:
            self._rejected[Key.of(job)] = rejected._replace(blocker=found, at=now)
        return found

    def rejection_of(self, job: Job) -> _Rejected | None:
        """The rejection of this job (by uid), not of an earlier job of the same name."""
        found = self._rejected.get(Key.of(job))
        return found if found and found.uid == job.metadata.uid else None

    async def dry_run(self, job: Job, pod: Manifest, now: float) -> tuple[Blocker, ...]:
        """Ask the API server before the first run whether it would accept a pod; a rejection is rechecked."""
        key, version = Key.of(job), (job.metadata.uid, job.metadata.generation)
        known = self._dry_runs.get(key)
        if known is None or not known.holds(version, now):
            known = self._dry_runs[key] = _DryRun(version, await self._rejected_pod(pod), now)
        return known.blockers

    async def _rejected_pod(self, pod: Manifest) -> tuple[Blocker, ...]:
        try:
            await self._cluster.create(pod, dry_run=True)
        except ApiError as error:
            # What the template did not cause is reported by the run that meets it.
            if error.kind is ErrorKind.REFUSED and not error.is_of_cluster:
                return (Blocker(reasons.TEMPLATE_REJECTED, error.message),)
            if error.kind not in (ErrorKind.REFUSED, ErrorKind.EXISTS):
                raise
        return ()

    async def _create(self, job: Job, manifest: Manifest) -> Blocker | None:
        """POST one object; return why it was refused, if the user should know."""
        try:
            await self._cluster.create(manifest)
        except ApiError as error:
            if error.kind is ErrorKind.EXISTS:
                return await self._adopt(job, manifest)
            if error.kind is ErrorKind.REFUSED:
                return Blocker(reasons.REFUSED, error.message)
            if error.kind is not ErrorKind.ABSENT:
                raise
            if "/" in manifest["apiVersion"]:
                # Otherwise the namespace is terminating, and the job with it.
                sentence = f"the cluster does not know {manifest['kind']} of {manifest['apiVersion']}; install it there"
                return Blocker(reasons.REFUSED, sentence)
        return None

    async def _adopt(self, job: Job, manifest: Manifest) -> Blocker | None:
        """Handle a name conflict: adopt our own object, delete a stale one, or return a rejection."""
        metadata = manifest["metadata"]
        name, plan_hash = metadata["name"], metadata["annotations"][names.ANNOTATION_PLAN_HASH]
        found = await self._cluster.read(manifest["apiVersion"], manifest["kind"], metadata["namespace"], name)
        annotations = found["metadata"].get("annotations") or {}
        if found["metadata"].get("deletionTimestamp"):
            raise ApiError(ErrorKind.RETRY, f"{manifest['kind']} {name} of an earlier life is still terminating")
        if owned_by([found], job.metadata.uid) and annotations.get(names.ANNOTATION_PLAN_HASH) == plan_hash:
            return None
        sentence = f"{manifest['kind']} {name} exists and is not of this job's run; delete it, or rename the job"
        return Blocker(reasons.NAME_TAKEN, sentence)
