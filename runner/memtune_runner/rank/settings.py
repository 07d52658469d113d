"""The settings that the operator passes to this process as environment variables, read once and validated.

The variables are those of ``memtune.wire.environment``. Imports no torch, because the launcher uses it too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan
from memtune.wire import environment
from memtune.wire.probe_pruning import NOTHING, Target
from memtune.wire.report import Device
from memtune.wire.run import RunKind

INTEGRATIONS = ("env", "hf-trainer", "accelerate", "lightning", "sdk")
_Value = TypeVar("_Value")


class SettingsError(ValueError):
    """A variable is missing or invalid. The message names it and says what to do."""


class Shrink(NamedTuple):
    """The memory of a virtual or emulated GPU after a number of training steps."""

    after_step: int
    left_bytes: int


@dataclass(frozen=True)
class Settings:
    """The settings of one process. Fields that the operator left out are None."""

    plan: Plan
    kind: RunKind
    integration: str
    global_batch: int
    sequence_length: int
    job: str = ""
    job_uid: str = ""
    run: str = ""
    attempt: int | None = None
    restarted_at: int = 0
    probe_steps: int | None = None
    probe_seconds: int | None = None
    target: Target = NOTHING
    nodes: int = 1
    node_rank: int = 0
    gpus_per_node: int = 1
    rendezvous: str = ""
    rendezvous_seconds: int = 50
    grace_seconds: int = 30
    device: Device = Device.CUDA
    gpu_name: str = ""
    gpu_memory_bytes: int | None = None
    memory_share: float | None = None
    nvme_path: Path | None = None
    shrink: Shrink | None = None
    evaluation_batch: int | None = None
    sharded_save: bool = False
    metrics_port: int | None = None
    architecture: dict[str, Any] | None = None
    deepspeed_config: Path | None = None
    checkpoint_path: Path | None = None
    resume_from: Path | None = None
    resume_step: int | None = None
    resume_samples: int = 0
    report_path: Path | None = None
    report_log_tail: bool = True
    termination_message_path: Path = Path("/dev/termination-log")

    def __post_init__(self) -> None:
        if self.plan.global_batch(self.world) != self.global_batch:
            raise SettingsError(
                f"{environment.PLAN}: {self.plan} over {self.world} GPUs makes {self.plan.global_batch(self.world)} "
                f"sequences a step, {environment.GLOBAL_BATCH} says {self.global_batch}; they must be equal"
            )
        if self.node_rank >= self.nodes:
            raise SettingsError(
                f"{environment.NODE_RANK}={self.node_rank}: with {environment.NODES}={self.nodes} it goes from 0 to "
                f"{self.nodes - 1}"
            )
        if self.device is not Device.CUDA and self.gpu_memory_bytes is None:
            name = environment.GPU_MEMORY_BYTES
            raise SettingsError(f"{name} is missing: an emulated GPU, like a virtual GPU, has the size it is given")
        if self.device is Device.EMULATED and not self.gpu_name:
            raise SettingsError(f"{environment.GPU_NAME} is missing: it says which GPU is emulated")
        if self.device is Device.CUDA and self.shrink is not None:
            raise SettingsError(
                f"{environment.SHRINK} is for virtual and emulated GPUs: no memory is taken away from a real one"
            )
        if self.plan.offload is Offload.NVME and self.nvme_path is None:
            raise SettingsError(
                f"{environment.NVME_PATH} is missing: {self.plan} offloads to a disk; give resources.nvmePath, "
                "a directory of the container on a local NVMe disk"
            )

    @property
    def world(self) -> int:
        """The number of ranks in the run."""
        return self.nodes * self.gpus_per_node

    @property
    def is_probe(self) -> bool:
        """Whether the run only measures."""
        return self.kind is RunKind.PROBE

    @property
    def budget_from_step(self) -> dict[int, int]:
        """Return the budget of a virtual or emulated GPU from each step of this process on; 0 is the start.

        Memory lost before the step resumed from stays lost. A probe is not part of the training, so it loses none.
        """
        if self.shrink is None or self.is_probe:
            return {}
        return {max(self.shrink.after_step - self.resumed_step, 0): self.shrink.left_bytes}

    @property
    def resumed_step(self) -> int:
        """The optimizer steps behind the checkpoint; a run without this number takes each step as a full one."""
        return self.resume_samples // self.global_batch if self.resume_step is None else self.resume_step


def read_settings(variables: Mapping[str, str]) -> Settings:
    """Parse ``variables`` (os.environ); raise SettingsError at the first invalid one."""
    read = _Reader(variables)
    return Settings(
        plan=read.required(environment.PLAN, _plan),
        kind=read.required(environment.RUN_KIND, RunKind),
        integration=read.optional(environment.INTEGRATION, _integration, "env"),
        global_batch=read.required(environment.GLOBAL_BATCH, _positive),
        sequence_length=read.required(environment.SEQUENCE_LENGTH, _positive),
        job=read.optional(environment.JOB, str, ""),
        job_uid=read.optional(environment.JOB_UID, str, ""),
        run=read.optional(environment.RUN, str, ""),
        attempt=read.optional(environment.ATTEMPT, _natural, None),
        restarted_at=read.optional(environment.RESTARTED_AT, _natural, 0),
        probe_steps=read.optional(environment.PROBE_STEPS, _positive, None),
        probe_seconds=read.optional(environment.PROBE_SECONDS, _positive, None),
        target=Target(
            read.optional(environment.PROBE_TARGET_TOKENS, _natural, 0),
            read.optional(environment.PROBE_TARGET_BYTES, _natural, 0),
        ),
        nodes=read.optional(environment.NODES, _positive, 1),
        node_rank=read.optional(environment.NODE_RANK, _natural, 0),
        gpus_per_node=read.optional(environment.GPUS_PER_NODE, _positive, 1),
        rendezvous=read.optional(environment.RENDEZVOUS, str, ""),
        rendezvous_seconds=read.optional(environment.RENDEZVOUS_SECONDS, _positive, Settings.rendezvous_seconds),
        grace_seconds=read.optional(environment.GRACE_SECONDS, _positive, Settings.grace_seconds),
        device=read.optional(environment.DEVICE, Device, Device.CUDA),
        gpu_name=read.optional(environment.GPU_NAME, str, ""),
        gpu_memory_bytes=read.optional(environment.GPU_MEMORY_BYTES, _positive, None),
        memory_share=read.optional(environment.MEMORY_SHARE, _share, None),
        nvme_path=read.optional(environment.NVME_PATH, Path, None),
        shrink=read.optional(environment.SHRINK, _shrink, None),
        evaluation_batch=read.optional(environment.EVALUATION_BATCH, _positive, None),
        sharded_save=read.optional(environment.SHARDED_SAVE, _flag, False),
        metrics_port=read.optional(environment.METRICS_PORT, _natural, None),
        architecture=read.optional(environment.ARCHITECTURE, _object, None),
        deepspeed_config=read.optional(environment.DEEPSPEED_CONFIG, Path, None),
        checkpoint_path=read.optional(environment.CHECKPOINT_PATH, Path, None),
        resume_from=read.optional(environment.RESUME_FROM, Path, None),
        resume_step=read.optional(environment.RESUME_STEP, _natural, None),
        resume_samples=read.optional(environment.RESUME_SAMPLES, _natural, 0),
        report_path=read.optional(environment.REPORT_PATH, Path, None),
        report_log_tail=read.optional(environment.REPORT_LOG_TAIL, _flag, True),
        termination_message_path=read.optional(
            environment.TERMINATION_MESSAGE_PATH, Path, Settings.termination_message_path
        ),
    )


class _Reader:
    """Parses one variable at a time; an empty one counts as unset."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def required(self, name: str, read: Callable[[str], _Value]) -> _Value:
        if not self._variables.get(name):
            raise SettingsError(f"{name} is not set; the operator sets it, and `memtune run` does without a cluster")
        return self._read(name, read)

    def optional(self, name: str, read: Callable[[str], _Value], default: Any) -> Any:
        return self._read(name, read) if self._variables.get(name) else default

    def _read(self, name: str, read: Callable[[str], _Value]) -> _Value:
        text = self._variables[name]
        try:
            return read(text)
        except ValueError as error:
            raise SettingsError(f"{name}={text[:200]!r}: {error}") from None


def _plan(text: str) -> Plan:
    """Parse a plan from JSON or from its short form."""
    return Plan.from_json(_object(text)) if text.lstrip().startswith("{") else Plan.parse(text)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is JSON, but not an object")
    return value


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("it is not a whole number of at least 1")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("it is not a whole number of at least 0")
    return int(text)


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise ValueError("it is not a share between 0 and 1, like 0.5")
    return share


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("it is neither 0 nor 1")
    return text == "1"


def _shrink(text: str) -> Shrink:
    step, _, left = text.partition(":")
    return Shrink(_positive(step), _positive(left))


def _integration(text: str) -> str:
    if text not in INTEGRATIONS:
        raise ValueError(f"it is not one of {', '.join(INTEGRATIONS)}")
    return text
