"""The root of `MemoryTunedJob`: spec, metadata, checkpoint volume and runner."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from memtune.api.fields import (
    MOST,
    ONE_WORD,
    AbsolutePath,
    Count,
    Flag,
    Foreign,
    ObjectName,
    SpecBlock,
    Text,
    Whole,
    left_out,
)
from memtune.api.model import Model
from memtune.api.training import Resources, Training
from memtune.api.tuning import Retry, Tuning

GROUP = "memtune.dev"
VERSION = "v1alpha1"
KIND = "MemoryTunedJob"
PLURAL = "memorytunedjobs"
API_VERSION = f"{GROUP}/{VERSION}"
DEFAULT_GPU_SECONDS_PER_GPU = 600


class ClaimVolume(SpecBlock):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: ObjectName = Field(description="Name of the claim.")


class NfsVolume(SpecBlock):
    """A directory of an NFS server."""

    server: Text = Field(description="Host name or address of the server.")
    path: AbsolutePath = Field(description="Directory that the server exports.")


class HostPathVolume(SpecBlock):
    """A directory of the node; a relaunch on another node does not find it."""

    path: AbsolutePath = Field(description="Directory on the node.")


class CheckpointVolume(SpecBlock):
    """Exactly one source; any other kind of volume can be mounted in template at checkpoint.path."""

    persistent_volume_claim: ClaimVolume | None = Field(default=None, description="A claim in the job's namespace.")
    nfs: NfsVolume | None = Field(default=None, description="A directory of an NFS server.")
    host_path: HostPathVolume | None = Field(
        default=None, description="A directory of the node; the policy must allow it."
    )


class Checkpoint(SpecBlock):
    """Where checkpoints are stored, so that a relaunch can resume."""

    path: AbsolutePath = Field(
        default="/checkpoints", description="Directory in the container that holds the checkpoints."
    )
    volume: CheckpointVolume | None = Field(
        default=None, description="Volume to mount at path; the template mounts one itself if left out."
    )


class Runner(SpecBlock):
    """How the runner gets into the user's image."""

    image: Annotated[str, Field(pattern=ONE_WORD, max_length=1024)] | None = Field(
        default=None, description="Image the runner is copied from; the operator's own if left out."
    )
    python: Annotated[str, Field(pattern=ONE_WORD, max_length=1024)] = Field(
        default="python3", description="Python interpreter of the user's image, by name or path."
    )


class JobSpec(SpecBlock):
    """The spec of a job."""

    model: Model = Field(description="The model: exactly one of hfConfig, architecture and factory.")
    training: Training = Field(description="One optimizer step. A plan changes it only as retry.consent allows.")
    resources: Resources = Field(default=left_out(Resources), description="The GPUs of the job.")
    template: Foreign | None = Field(
        default=None,
        description="An ordinary PodTemplateSpec; the built-in trainer on synthetic tokens runs if left out.",
    )
    integration: Literal["env", "hf-trainer", "accelerate", "lightning", "sdk"] = Field(
        default="env",
        description="How a plan reaches the script in template: env as MEMTUNE_* variables, hf-trainer, accelerate and "
        "lightning through that library's own arguments, sdk through a call of memtune_runner.initialize.",
    )
    launcher: Literal["Pods", "JobSet"] = Field(
        default="Pods", description="Whether a run is made of plain pods, or of a JobSet, which then must be installed."
    )
    runner: Runner = Field(default=left_out(Runner), description="How the runner gets into the user's image.")
    tuning: Tuning = Field(default=left_out(Tuning), description="How the plan is found, and what finding it may cost.")
    retry: Retry = Field(default=left_out(Retry), description="Recovery after a failed attempt.")
    checkpoint: Checkpoint | None = Field(
        default=None, description="Where checkpoints are; a run that died cannot resume if left out."
    )
    pod_retention: Literal["Failed", "None"] = Field(
        default="Failed",
        description="Which terminated pods stay for their logs: those of the last two failed runs, or none.",
    )
    report_log_tail: Flag = Field(
        default=True, description="Whether the last lines of a failed run's log go into its report."
    )
    suspend: Flag = Field(
        default=False, description="Whether all pods of the job are stopped until this is false again."
    )
    active_deadline_seconds: Annotated[Count, Field(le=MOST)] | None = Field(
        default=None, description="Seconds after the first running pod at which the job fails; no deadline if left out."
    )
    ttl_seconds_after_finished: Annotated[Whole, Field(ge=0, le=MOST)] | None = Field(
        default=None, description="Seconds after its end at which the job is deleted; it stays if left out."
    )

    @property
    def unpriced(self) -> JobSpec:
        """The spec without its price, which no measurement depends on."""
        if self.resources.gpu_hour_price is None:
            return self
        return self.model_copy(update={"resources": self.resources.model_copy(update={"gpu_hour_price": None})})


class Metadata(BaseModel):
    """The metadata that MemTune reads; the rest is the API server's."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True, defer_build=True)

    name: ObjectName
    namespace: ObjectName = "default"
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Job(SpecBlock):
    """One MemoryTunedJob. Its status is read apart, since only the operator writes it."""

    api_version: Literal["memtune.dev/v1alpha1"]
    kind: Literal["MemoryTunedJob"]
    metadata: Metadata
    spec: JobSpec
    status: dict[str, Any] = Field(default_factory=dict)

    @property
    def max_gpu_seconds(self) -> int:
        """The GPU-second budget of all probes together."""
        return self.spec.tuning.max_gpu_seconds or DEFAULT_GPU_SECONDS_PER_GPU * self.spec.resources.world
