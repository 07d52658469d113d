"""The input, working state and output of one decision: `Context` and `Decision`.

Each phase takes a context and returns the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from memtune.api.job import Job
from memtune.api.status import (
    Condition,
    ConditionType,
    ProbeStatus,
    RecordStatus,
    Status,
    job_message,
    to_seconds,
    to_text,
)
from memtune.controller.observation import Blocker, Observed, PodObservation, RunObservation
from memtune.controller.records import has_earlier_probes
from memtune.controller.stale_probes import current_probes
from memtune.memory.measured_overhead import JobOverhead
from memtune.planning.next_probe import Search
from memtune.wire.run import Run, TraceRun


@dataclass(frozen=True)
class Deletion:
    """An object to delete, if it still has this uid. ``grace_seconds`` None means the pod's own grace period."""

    kind: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class JobEvent:
    """One event on the job, emitted only when something changed. ``run`` is the run whose end it reports, if any."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    run: str = ""


@dataclass(frozen=True)
class Decision:
    """The decision that follows from one snapshot.

    The backend writes ``status`` if it differs from the one read, with the resourceVersion as precondition. Only when
    that succeeds does it do the rest; on a conflict it observes again. ``create`` holds the runs that the status *as
    read* had recorded and not ended: each of their missing pods and objects is created. A run that this decision
    records is in ``create`` of the next one, which the backend requests at once when the status changed. ``trace`` is
    the trace of the job's factory, ``measured_overhead`` the bytes that its runs had outside the allocator, and
    ``probes`` the measurements of its probes; each only if the namespace does not store it yet. ``wake_after_seconds``
    is when to decide again even if nothing happens; None if only a change can matter.
    """

    status: Status
    create: tuple[Run | TraceRun, ...] = ()
    delete: tuple[Deletion, ...] = ()
    events: tuple[JobEvent, ...] = ()
    wake_after_seconds: float | None = None
    delete_job: bool = False
    trace: str = ""
    measured_overhead: JobOverhead | None = None
    probes: tuple[ProbeStatus, ...] = ()


# A lost node sends no events, so pods that do not terminate are polled.
LOOK_AGAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Context:
    """One job at one moment. ``runs`` are the observed runs, with every expected pod filled in.

    ``stalled`` and ``queued`` say what holds the job back, so that no new run is recorded now; ``is_due`` that the job
    itself is to be deleted. ``trace`` is the trace of the job's factory, or empty.
    """

    job: Job
    observed: Observed
    now: float
    search: Search
    status: Status
    runs: Mapping[str, RunObservation]
    events: tuple[JobEvent, ...] = ()
    wakes: tuple[float, ...] = ()
    stalled: Blocker | None = None
    queued: Blocker | None = None
    is_due: bool = False
    trace: str = ""

    @property
    def blocked(self) -> str:
        """Why no new run may be recorded now; empty if one may."""
        held = self.stalled or self.queued
        return f"{held.reason}: {held.message}" if held else ""

    @property
    def current_probes(self) -> tuple[ProbeStatus, ...]:
        """The probes without stale ones, of which only a job that goes on from earlier jobs' probes can have any."""
        return current_probes(self.status.probes) if has_earlier_probes(self.status) else self.status.probes

    def having(self, **changes: Any) -> Context:
        """Replace values in the status."""
        return self.becoming(self.status.model_copy(update=changes))

    def becoming(self, status: Status) -> Context:
        """Replace the status."""
        return replace(self, status=status)

    def saying(self, text: str) -> Context:
        """Replace the sentence that says what the job is doing."""
        return self.having(message=job_message(text))

    def telling(self, kind: Literal["Normal", "Warning"], reason: str, text: str, run: str = "") -> Context:
        """Add an event."""
        return replace(self, events=(*self.events, JobEvent(kind, reason, job_message(text), run)))

    def waking(self, seconds: float) -> Context:
        """Decide again after this many seconds at the latest."""
        return replace(self, wakes=(*self.wakes, max(seconds, 1.0)))

    def deleting_job(self) -> Context:
        """Mark the job for deletion: its time to live is over."""
        return replace(self, is_due=True)

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of this type, if the status has one."""
        return next((each for each in self.status.conditions if each.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether a condition is true."""
        found = self.condition(kind)
        return found is not None and found.status == "True"

    def message_of(self, kind: ConditionType) -> str:
        """The message of a condition."""
        found = self.condition(kind)
        return found.message if found else ""

    def since(self, kind: ConditionType) -> float | None:
        """When a condition last changed."""
        found = self.condition(kind)
        return to_seconds(found.last_transition_time) if found else None

    def with_condition(self, kind: ConditionType, holds: bool, reason: str, text: str) -> Context:
        """Set a condition; its transition time changes only with its status."""
        old = self.condition(kind)
        status: Literal["True", "False"] = "True" if holds else "False"
        changed_at = old.last_transition_time if old and old.status == status else to_text(self.now)
        new = Condition(
            type=kind,
            status=status,
            observed_generation=self.status.observed_generation,
            last_transition_time=changed_at,
            reason=reason,
            message=job_message(text),
        )
        others = [each for each in self.status.conditions if each.type != kind]
        return self.having(conditions=tuple(sorted((*others, new), key=lambda each: _ORDER.index(each.type))))

    def pods(self, record: RecordStatus) -> tuple[PodObservation, ...]:
        """The pods of a run."""
        run = self.runs.get(record.name)
        return run.pods if run else ()

    @property
    def world(self) -> int:
        """All GPUs of one run."""
        return self.job.spec.resources.world

    def gpu_hour_price(self, product: str) -> float | None:
        """The job's price of a GPU, else the product's, which is for a whole GPU."""
        resources = self.job.spec.resources
        if resources.gpu_hour_price is not None or resources.is_part:
            return resources.gpu_hour_price
        return self.observed.gpu_hour_prices.get(product)


_ORDER: list[ConditionType] = [
    "Predicted",
    "Tuned",
    "Launched",
    "Complete",
    "Failed",
    "Suspended",
    "Queued",
    "Stalled",
]


def holds_gpus(pod: PodObservation) -> bool:
    """Whether an existing pod may still hold its GPUs: it has not ended, and its node is not lost."""
    # A pod deleted before it was bound to a node never starts, however long a finalizer keeps it.
    is_placeless = pod.deleting and not pod.node and pod.started_at_seconds is None
    is_over = pod.phase in ("Succeeded", "Failed")
    return bool(pod.uid) and pod.present and not (is_over or is_placeless or pod.node_lost)
