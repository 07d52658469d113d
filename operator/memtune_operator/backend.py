"""The backend protocol: how the reconciler reads jobs and acts on them, in a cluster or on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from memtune.api import Job, reasons
from memtune.api.status import ProbeStatus
from memtune.controller import Blocker, Deletion, JobEvent, Observed
from memtune.memory.measured_overhead import JobOverhead
from memtune.wire.run import Run, TraceRun


class Key(NamedTuple):
    """The namespace and name of a job."""

    namespace: str
    name: str

    @classmethod
    def of(cls, job: Job) -> Key:
        """The key of a parsed job."""
        return cls(job.metadata.namespace, job.metadata.name)


@dataclass(frozen=True)
class Snapshot:
    """One job at one moment. ``manifest`` is the object as read; ``job`` is None if the object is invalid or may not be
    managed, and ``problem`` then says why."""

    manifest: dict[str, Any]
    observed: Observed
    job: Job | None = None
    problem: Blocker | None = None

    @property
    def status(self) -> dict[str, Any]:
        """The status as read, unchecked."""
        status = self.manifest.get("status")
        return status if isinstance(status, dict) else {}

    @property
    def is_unreadable(self) -> bool:
        """Whether the operator lacks the right to see the objects of the job."""
        return self.problem is not None and self.problem.reason == reasons.REFUSED

    @property
    def generation(self) -> int:
        """The generation of the spec."""
        return int(self.manifest["metadata"].get("generation") or 0)


class Backend(Protocol):
    """The protocol that the reconciler needs. Each method may raise ApiError; actions that were done before it stay
    done.
    """

    async def observe(self, key: Key, now: float) -> Snapshot | None:
        """Return the job and all that belongs to it; None if it is gone or being deleted."""

    async def write(self, snapshot: Snapshot, status: dict[str, Any]) -> None:
        """Write the status, if the object has not changed since the snapshot."""

    async def create(self, snapshot: Snapshot, runs: Sequence[Run | TraceRun], now: float) -> bool:
        """Create the missing objects of these runs. A refusal is not raised but kept for the next snapshot; return
        whether there is a new one."""

    async def remember_trace(self, snapshot: Snapshot, trace: str, now: float) -> bool:
        """Cache the trace of the job's factory for this job and for later jobs with the same factory; return whether it
        is cached."""

    async def remember_overhead(self, snapshot: Snapshot, measured: JobOverhead) -> bool:
        """Cache the memory that the job measured outside the allocator, for later jobs on the same GPU; return whether
        to retry on a later reconcile."""

    async def remember_probes(self, snapshot: Snapshot, probes: Sequence[ProbeStatus], now: float) -> bool:
        """Cache what the job's probes measured, for later jobs with the same subject; return whether to retry on a
        later reconcile."""

    async def delete(self, snapshot: Snapshot, deletions: Sequence[Deletion]) -> None:
        """Delete these objects, each only if its uid is still the one that was observed."""

    async def tell(self, snapshot: Snapshot, events: Sequence[JobEvent]) -> None:
        """Publish events. Nothing depends on their delivery."""

    async def delete_job(self, snapshot: Snapshot) -> None:
        """Delete the job itself."""
