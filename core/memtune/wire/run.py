"""A run: one group of pods that executes a plan, as it is recorded before any of its pods is made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from memtune.gpus.gpu import Gpu
from memtune.plans.plan import Plan
from memtune.wire.pruning import NOTHING, Target


class RunKind(str, Enum):
    """A probe run measures a plan in a few steps, a train run is the real thing. A trace run comes before any plan.

    An emulate run is a probe on an emulated GPU: it measures the plan's memory, and asks for no GPU.
    """

    EMULATE = "emulate"
    PROBE = "probe"
    TRAIN = "train"
    TRACE = "trace"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Checkpointed:
    """Where a train run goes on: the directory of its checkpoints, and the samples behind the newest complete one.

    ``samples`` is what reports told, 0 if none did; the runner takes the newest complete checkpoint that is there.
    ``convert`` says that it has to be converted for the plan before the run starts.
    """

    path: str
    samples: int
    convert: bool = False


@dataclass(frozen=True)
class Run:
    """One run. ``number`` counts the runs of its kind from 1: the probe's number, or the attempt's.

    ``gpu_product`` is the one product that its nodes must have, empty where the job or the cluster has only one anyway.
    ``evaluation_batch`` and ``sharded_save`` are what an earlier attempt that died in an evaluation or in a save
    taught: a smaller batch than the job's, and a save that gathers nothing on one rank. ``host_request_bytes`` is the
    host memory that a pod asks for at least. Empty values leave everything as it is. ``restarted_at`` is the number of
    the attempt with which the training began from step 0 again, 0 if it never did. ``seconds`` is after how long a
    probe ends by itself, 0 for never. ``gpu`` is the one that an emulate run emulates, ``target`` what a probe has to
    beat.
    """

    kind: RunKind
    number: int
    plan: Plan
    resume: Checkpointed | None = None
    avoided_nodes: tuple[str, ...] = ()
    gpu_product: str = ""
    evaluation_batch: int = 0
    sharded_save: bool = False
    host_request_bytes: int = 0
    restarted_at: int = 0
    seconds: int = 0
    gpu: Gpu | None = None
    target: Target = NOTHING

    def __post_init__(self) -> None:
        if (self.kind is RunKind.EMULATE) != (self.gpu is not None):
            raise ValueError(f"{self.kind} run {self.number}: only an emulate run has a GPU to emulate")
        if self.kind is RunKind.PROBE and self.resume:
            raise ValueError(f"probe {self.number}: a probe starts from fresh weights; only a train run resumes")


@dataclass(frozen=True)
class TraceRun:
    """The run of one pod that traces the job's factory on a CPU."""

    number: int
    kind: ClassVar[RunKind] = RunKind.TRACE
