"""The backend's observation of one job at one moment, as plain values: pods, nodes and blockers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from memtune.api.status import ProbeStatus
from memtune.memory.measured_overhead import MeasuredOverhead


class ReportedEnding(Protocol):
    """The fields read from a runner's report. Reports are untrusted: an unknown ending is ignored."""

    @property
    def ending(self) -> str:
        """How the run ended, as the runner saw it."""

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

    ``waiting_*`` is the waiting reason of any container of the pod, ``init_exit_code`` that of a failed init container.
    ``failure_order`` is the place of its failure in the order of the rendezvous store, None if it has none.
    ``mismatch`` names the difference between the plan that its report saw applied and the plan requested. ``present``
    is False for a pod that was created and no longer exists; a pod not created yet is present. ``held_seconds`` is how
    long a vanished pod had its GPUs; None if nobody watched it. ``node_lost`` says that its node is lost, by what the
    operator's ``pods/lost_nodes.py`` decides; ``node_doubted`` that it soon will be, unless it answers. ``plan`` is the
    short form in the pod's annotation of the plan it was made for; empty means the run's. ``last_words`` is its
    termination message if that is not a report. ``started_at_seconds`` is when the wrapped container started, None if
    it has not.
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
    report: ReportedEnding | None = None
    failure_order: int | None = None
    mismatch: str = ""
    last_words: str = ""


@dataclass(frozen=True)
class RunObservation:
    """All pods that a run has or should have. ``rejection`` is the API server's sentence, if it rejected one of them.

    ``overdue`` says that the run exceeded its time; the caller has the clock. A run with ``is_probe`` measures, on all
    of its pods.
    """

    pods: tuple[PodObservation, ...]
    rejection: str = ""
    overdue: bool = False
    is_probe: bool = False


@dataclass(frozen=True)
class Node:
    """A node that the template's selector, affinity and tolerations allow; a missing label is empty or 0.

    ``gpus`` is its allocatable count of the job's GPU resource, whether free or not; 0 if unknown.
    """

    name: str
    gpu_product: str = ""
    gpu_memory_bytes: int = 0
    gpus: int = 0


def only_product(nodes: Iterable[Node]) -> str:
    """The GPU product of all nodes; empty if they differ or none says."""
    products = {node.gpu_product for node in nodes if node.gpu_product}
    return products.pop() if len(products) == 1 else ""


@dataclass(frozen=True)
class Owned:
    """An object of a run other than a pod: its Service, a PodGroup, a JobSet. The job controls it by uid.

    ``holds_pods`` says that deleting it deletes the run's pods.
    """

    kind: str
    name: str
    uid: str
    run: str
    holds_pods: bool = False


@dataclass(frozen=True)
class Blocker:
    """Why no pod of the job may be created: one CamelCase word of `reasons`, and a sentence of whoever forbids it."""

    reason: str
    message: str


@dataclass(frozen=True)
class Observed:
    """One job as the backend sees it.

    ``status`` is the job's as last read, whatever it holds.
    ``runs`` has the existing pods by the run that their label names, and only those whose controller ownerReference has
    the job's uid; a run without pods may be left out. The backend fills in what it sees of each pod: ``present`` stays
    True and ``overdue`` False, since which pods are expected and how long a run may take is decided here.
    ``RunObservation.rejection`` is the API server's last refusal to create a pod or another object of that run (quota,
    admission), empty once it was accepted.
    ``blockers`` forbid every pod (policy, template, a name that is taken).
    ``nodes`` is None if the operator may not read nodes.
    ``seen_going`` has the pods, by run and index, that were watched until they were gone, with the seconds for which
    their wrapped containers ran.
    ``trace`` is the stored message of the job's factory, empty if the namespace has none.
    ``measured_overhead`` is what jobs of the same image, GPU and world measured outside the allocator, None if the GPU
    is unknown or nothing is stored.
    ``earlier`` are the probes of the newest job with the same question, each with the job that ran it; None for the
    same reasons.
    ``gpu_hour_prices`` are dollars by GPU product.
    """

    status: Mapping[str, Any] = field(default_factory=dict)
    runs: Mapping[str, RunObservation] = field(default_factory=dict)
    owned: tuple[Owned, ...] = ()
    nodes: tuple[Node, ...] | None = None
    blockers: tuple[Blocker, ...] = ()
    seen_going: Mapping[tuple[str, int], float] = field(default_factory=dict)
    trace: str = ""
    measured_overhead: MeasuredOverhead | None = None
    earlier: tuple[ProbeStatus, ...] | None = None
    gpu_hour_prices: Mapping[str, float] = field(default_factory=dict)
