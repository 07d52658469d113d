"""What `decide` is told: everything that the shell saw of one job, as plain values, at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memtune.api.status import RunStatus
from memtune.controller.observation import RunObservation
from memtune.memory.measured_overhead import Remembered


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
    """One job as the shell sees it.

    ``status`` is the job's as last read, whatever it holds. ``runs`` has the pods that exist, by the run that their
    label names, and only those whose controller ownerReference carries the job's uid; a run without pods may be left
    out. Of each pod the shell fills in what it sees: ``present`` stays True, ``overdue`` False, for which pods should
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
