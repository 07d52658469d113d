"""`Run`: one group of pods that executes a plan, recorded before any of its pods is created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memtune.gpus.gpu import Gpu
from memtune.plans.plan import Plan
from memtune.wire.probe_pruning import NOTHING, Target
from memtune.words import Word


class RunKind(Word):
    """A probe measures a plan in a few steps, an attempt is the real training, a trace run precedes any plan.

    An emulate run is a probe on an emulated GPU: it measures the plan's memory without requesting a GPU.
    """

    EMULATE = "emulate"
    PROBE = "probe"
    TRAIN = "train"
    TRACE = "trace"


@dataclass(frozen=True)
class Checkpointed:
    """Where an attempt resumes: the directory of its checkpoints, and the samples behind the newest complete one.

    ``samples`` comes from reports, 0 if none has it; the runner uses the newest complete checkpoint that it finds.
    ``convert`` says that the checkpoint must be converted for the plan before the run starts.
    """

    path: str
    samples: int
    convert: bool = False


@dataclass(frozen=True)
class Run:
    """One run. ``number`` counts the runs of its kind from 1: the probe's number, or the attempt's.

    ``gpu_product`` is the one product that its nodes must have, empty if the job or the cluster has only one anyway.
    ``evaluation_batch`` and ``sharded_save`` are the lessons of an earlier attempt that died in an evaluation or a
    save: a smaller batch than the job's, and a save that gathers nothing on one rank. ``host_request_bytes`` is the
    minimum host memory request of a pod. Empty values change nothing. ``restarted_at`` is the number of the attempt
    with which the training restarted from step 0, 0 if it never did. ``seconds`` is the time after which a probe ends
    itself, 0 for never. ``gpu`` is the one that an emulate run emulates, ``target`` what a probe has to beat.
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
            raise ValueError(f"probe {self.number}: a probe starts from fresh weights; only an attempt resumes")


@dataclass(frozen=True)
class TraceRun:
    """The run of one pod that traces the job's factory on a CPU."""

    number: int
    kind: ClassVar[RunKind] = RunKind.TRACE
