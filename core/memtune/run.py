"""A run: one group of pods that executes a plan, as it is recorded before any of its pods is made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from memtune.plan import Plan


class RunKind(str, Enum):
    """A probe run measures a plan in a few steps, a train run is the real thing."""

    PROBE = "probe"
    TRAIN = "train"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Checkpointed:
    """A complete checkpoint that a train run goes on from: its directory, and the samples it had consumed."""

    path: str
    samples: int


@dataclass(frozen=True)
class Run:
    """One run. ``number`` counts the runs of its kind from 0: the probe's number, or the attempt's."""

    kind: RunKind
    number: int
    plan: Plan
    resume: Checkpointed | None = None
    avoided_nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is RunKind.PROBE and self.resume:
            raise ValueError(f"probe {self.number}: a probe starts from fresh weights; only a train run resumes")
