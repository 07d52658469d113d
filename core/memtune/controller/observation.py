"""What is seen of a run from outside, and all that a verdict rests on. The shell fills it in, core reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Told(Protocol):
    """What is read of a runner's report here. The report is untrusted: an ending of no known name is passed over."""

    @property
    def ending(self) -> str:
        """How the run ended in the runner's own eyes."""

    @property
    def message(self) -> str:
        """The error in the runner's words."""


class PodCondition(NamedTuple):
    """One condition of a pod."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class PodObservation:
    """One pod of a run. ``exit_*``, ``finished_at_seconds`` and ``report`` are of the wrapped container.

    ``waiting_*`` is what any container of the pod waits for, and ``init_exit_code`` that of a failed init container.
    ``failure_order`` is the place of its failure in the order of the rendezvous store, None where it left none there.
    ``mismatch`` names where the plan that its report saw applied differs from the one asked for.
    A pod that was created and is not there any more is not ``present``; one that was not created yet is.
    Of one that went, ``held_seconds`` is how long it had its GPUs; None if nobody watched, so that nobody knows.
    ``node_doubted`` says that its node will count as ``node_lost`` in a while, unless it answers.
    ``plan`` is the short form of the plan that the pod was made for, as its annotation says; empty counts as the run's.
    ``last_words`` is what its termination message says where that is no report.
    ``started_at_seconds`` is when the wrapped container started, None while it has not.
    """

    index: int
    name: str = ""
    uid: str = ""
    node: str = ""
    plan: str = ""
    present: bool = True
    held_seconds: float | None = None
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    deleting: bool = False
    node_lost: bool = False
    node_doubted: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    init_exit_code: int = 0
    exit_code: int | None = None
    exit_reason: str = ""
    started_at_seconds: float | None = None
    finished_at_seconds: float | None = None
    report: Told | None = None
    failure_order: int | None = None
    mismatch: str = ""
    last_words: str = ""

    def condition(self, kind: str, status: str) -> PodCondition | None:
        """The condition of this type, if it has this status."""
        return next((c for c in self.conditions if (c.type, c.status) == (kind, status)), None)


@dataclass(frozen=True)
class RunObservation:
    """All pods that a run has or should have. ``refusal`` is the API server's, when it would not take one of them.

    ``overdue`` says that the run has gone on for longer than it may; the caller has the clock. A run that ``is_probe``
    is there to measure, on all of its pods.
    """

    pods: tuple[PodObservation, ...]
    refusal: str = ""
    overdue: bool = False
    is_probe: bool = False
