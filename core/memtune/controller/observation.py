"""What the backend saw of one job at one moment, as plain values: its pods, its nodes, and what refuses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from memtune.api.status import RunStatus
from memtune.memory.measured_overhead import Remembered


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


@dataclass(frozen=True)
class Node:
    """A node that the template's selector, affinity and tolerations allow; what a label does not tell is empty or 0."""

    name: str
    gpu_product: str = ""
    gpu_memory_bytes: int = 0


def only_product(nodes: Iterable[Node]) -> str:
    """The GPU product of all nodes, empty if they differ or none tells."""
    products = {node.gpu_product for node in nodes if node.gpu_product}
    return products.pop() if len(products) == 1 else ""


@dataclass(frozen=True)
class Owned:
    """An object of a run that is not a pod: its Service, a PodGroup, a JobSet. The job controls it by uid.

    ``holds_pods`` says that the run's pods go with it.
    """

    kind: str
    name: str
    uid: str
    run: str
    holds_pods: bool = False


@dataclass(frozen=True)
class Refusal:
    """Why no pod of the job may be created at all: one CamelCase word of `reasons`, and the refuser's own sentence."""

    reason: str
    message: str


@dataclass(frozen=True)
class Observed:
    """One job as the backend sees it.

    ``status`` is the job's as last read, whatever it holds. ``runs`` has the pods that exist, by the run that their
    label names, and only those whose controller ownerReference carries the job's uid; a run without pods may be left
    out. Of each pod the backend fills in what it sees: ``present`` stays True, ``overdue`` False, for which pods should
    be there and how long a run may take is decided here. ``RunObservation.refusal`` is the API server's last refusal to
    create a pod or another object of that run (quota, admission), empty once it was taken. ``refusals`` forbid every
    pod (policy, template, a name that is taken). ``nodes`` is None where the operator may not read nodes.
    ``seen_going`` are the pods, by run and index, that were watched until they were gone, with the seconds for which
    their wrapped containers ran.
    ``trace`` is the message that the namespace remembers of the job's factory, empty if it remembers none.
    ``remembered`` is what jobs of the same image, GPU and world measured outside of the allocator, None where the GPU
    is not known or nobody keeps it. ``earlier`` are the probes that the newest job which asked the same left, each
    with the job that ran it; None for the same reasons. ``gpu_hour_prices`` are dollars by GPU product.
    """

    status: Mapping[str, Any] = field(default_factory=dict)
    runs: Mapping[str, RunObservation] = field(default_factory=dict)
    owned: tuple[Owned, ...] = ()
    nodes: tuple[Node, ...] | None = None
    refusals: tuple[Refusal, ...] = ()
    seen_going: Mapping[tuple[str, int], float] = field(default_factory=dict)
    trace: str = ""
    remembered: Remembered | None = None
    earlier: tuple[RunStatus, ...] | None = None
    gpu_hour_prices: Mapping[str, float] = field(default_factory=dict)
