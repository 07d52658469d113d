"""What `decide` answers: the new status, and what to do once that status is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memtune.api.status import RunStatus, Status
from memtune.memory.measured_overhead import JobOutside
from memtune.wire.run import Run, TraceRun


@dataclass(frozen=True)
class Deletion:
    """An object to delete, if it still has this uid. ``grace_seconds`` is None for the pod's own grace period."""

    kind: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class Event:
    """One event on the job. It is only told when something changed."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """What follows from one snapshot.

    The shell writes ``status`` if it differs from the one read, with the read resourceVersion as precondition, and only
    when that succeeded does the rest: on a conflict it observes again and does nothing. ``create`` holds runs that the
    status *as read* had recorded and not ended: every pod and object of them that does not exist is POSTed. A run that
    this decision records comes in ``create`` of the next one, which the shell asks for at once when the status changed.
    ``trace`` is that of the job's factory, ``measured`` what its runs measured outside of the allocator, and ``probes``
    what its probes measured, as far as the namespace does not remember them yet.
    ``wake_after_seconds`` is when to ask again even if nothing happens, None if only a change can matter.
    """

    status: Status
    create: tuple[Run | TraceRun, ...] = ()
    delete: tuple[Deletion, ...] = ()
    events: tuple[Event, ...] = ()
    wake_after_seconds: float | None = None
    delete_job: bool = False
    trace: str = ""
    measured: JobOutside | None = None
    probes: tuple[RunStatus, ...] = ()
