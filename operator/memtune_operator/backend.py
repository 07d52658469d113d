"""Where jobs and their runs are: a cluster, or this machine. The reconciler knows no more of it than this protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from memtune.api import Job
from memtune.api.status import RunStatus
from memtune.controller import Deletion, Event, Observed, Refusal, reasons
from memtune.memory.measured_overhead import JobOutside
from memtune.wire.run import Run, TraceRun


class Key(NamedTuple):
    """Which job."""

    namespace: str
    name: str

    @classmethod
    def of(cls, job: Job) -> Key:
        """The key of a job that could be read."""
        return cls(job.metadata.namespace, job.metadata.name)


@dataclass(frozen=True)
class Snapshot:
    """One job as it was at one moment. ``manifest`` is the object as read; ``job`` is None if it is none, or cannot be
    looked after; ``problem`` then says why."""

    manifest: dict[str, Any]
    observed: Observed
    job: Job | None = None
    problem: Refusal | None = None

    @property
    def status(self) -> dict[str, Any]:
        """The status as read, whatever it holds."""
        status = self.manifest.get("status")
        return status if isinstance(status, dict) else {}

    @property
    def is_out_of_sight(self) -> bool:
        """Whether the operator may not see what belongs to the job, whatever the job says."""
        return self.problem is not None and self.problem.reason == reasons.REFUSED

    @property
    def generation(self) -> int:
        """The generation of the spec."""
        return int(self.manifest["metadata"].get("generation") or 0)


class Backend(Protocol):
    """What the reconciler asks for. Each method may raise RefusalError; what was done until then stays done."""

    async def observe(self, key: Key, now: float) -> Snapshot | None:
        """The job and all that belongs to it; None if it is gone, or about to be."""

    async def write(self, snapshot: Snapshot, status: dict[str, Any]) -> None:
        """Write the status, if nobody wrote since the snapshot."""

    async def create(self, snapshot: Snapshot, runs: Sequence[Run | TraceRun], now: float) -> bool:
        """Make whatever of these runs is not there. A refusal is not raised but kept for the next snapshot; the answer
        is whether there is a new one."""

    async def remember_trace(self, snapshot: Snapshot, trace: str, now: float) -> bool:
        """Keep the trace of the job's factory for the job, and for others that would come to the same; whether it is
        kept now."""

    async def remember_measured(self, snapshot: Snapshot, measured: JobOutside) -> bool:
        """Keep what the job measured outside of the allocator for later ones on the same GPU; whether it is worth
        looking again."""

    async def remember_probes(self, snapshot: Snapshot, probes: Sequence[RunStatus], now: float) -> bool:
        """Keep what the job's probes measured for later ones that ask the same; whether it is worth looking again."""

    async def delete(self, snapshot: Snapshot, deletions: Sequence[Deletion]) -> None:
        """Delete these objects, each only if it is still the one that was seen."""

    async def tell(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Tell what happened. Nothing depends on whether it is heard."""

    async def delete_job(self, snapshot: Snapshot) -> None:
        """Delete the job itself."""
