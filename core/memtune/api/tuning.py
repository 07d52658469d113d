"""`spec.tuning` and `spec.retry`: what may be tried, at what cost, and retries after a failed run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from memtune.api.fields import (
    CHECKPOINTING,
    MOST,
    Count,
    Distinct,
    Flag,
    Percent,
    ShortForm,
    SpecBlock,
    Whole,
    left_out,
    to_ratio,
)
from memtune.planning.space import BOTH, THROUGHPUT
from memtune.plans.knobs import Attention, Offload, Optimizer, Precision
from memtune.plans.plan import Plan

CheckpointingName = Annotated[str, Field(pattern=CHECKPOINTING, max_length=16)]
ZeroStage = Annotated[Whole, Field(ge=0, le=3)]
MicroBatch = Annotated[Count, Field(le=10_000_000)]
Backend = Literal["deepspeed", "fsdp", "ddp"]
FsdpStrategy = Literal["full", "shard-grad-op", "hybrid"]
Objective = Literal["throughput", "memory", "cost"]
Sampler = Literal["MemTune", "TPE", "GP", "Random"]
# Not Off, here and in `mode`: YAML reads an unquoted `Off` as false.
Emulation = Literal["Auto", "Only", "Never"]
Consent = Literal["optimizer-8bit", "gradient-dtype", "precision"]
# The status keeps every probe, and must stay under 128 KiB.
MAX_PROBES = 48
Probes = Annotated[Count, Field(le=MAX_PROBES)]


class SpaceSpec(SpecBlock):
    """The choices of each knob that a plan of this job may take."""

    precision: Annotated[tuple[Precision, ...], Field(min_length=1, max_length=5), Distinct] = Field(
        default=(Precision.BF16,), description="Number formats of the matrix products."
    )
    checkpointing: Annotated[tuple[CheckpointingName, ...], Field(min_length=1, max_length=16), Distinct] = Field(
        default=("none", "selective", "full"),
        description="Ways of activation checkpointing: none, selective (what is cheap to recompute), every-K (each "
        "K-th layer), full (each layer).",
    )
    zero_stages: Annotated[tuple[ZeroStage, ...], Field(min_length=1, max_length=4), Distinct] = Field(
        default=(0, 1, 2, 3), description="ZeRO stages that the deepspeed backend may take."
    )
    offload: Annotated[tuple[Offload, ...], Field(min_length=1, max_length=5), Distinct] = Field(
        default=(Offload.NONE,),
        description="Tensors that may live in host memory; nvme puts optimizer states and parameters on disk.",
    )
    backends: Annotated[tuple[Backend, ...], Field(min_length=1, max_length=3), Distinct] = Field(
        default=("deepspeed", "fsdp"), description="Libraries that may carry a plan out."
    )
    fsdp_strategies: Annotated[tuple[FsdpStrategy, ...], Field(min_length=1, max_length=3), Distinct] = Field(
        default=("full", "shard-grad-op"),
        description="Sharding that the fsdp backend may take: full; shard-grad-op, which keeps gathered weights until "
        "the backward pass; hybrid, which shards within a node and copies between nodes.",
    )
    expandable_segments: Annotated[tuple[Flag, ...], Field(min_length=1, max_length=2), Distinct] = Field(
        default=(False,),
        description="Whether torch's allocator may take expandable segments, which leave less memory unused; [false, "
        "true] measures both. An out-of-memory by fragmentation switches them on in any case.",
    )
    attention: Annotated[tuple[Attention, ...], Field(min_length=1, max_length=3), Distinct] | None = Field(
        default=None,
        description="Attention kernels that a plan may take; that of training if left out. Only the built-in trainer "
        "and integration sdk set it. With flash, sdpa is taken only where flash has no kernel.",
    )
    fused_loss: Annotated[tuple[Flag, ...], Field(min_length=1, max_length=2), Distinct] = Field(
        default=(False,),
        description="Whether a plan may fuse the loss with the model's head, which keeps no logits; [false, true] "
        "measures both. Only the built-in trainer has such a loss, and a script of integration sdk that gives "
        "fused_loss.",
    )
    optimizer: Annotated[tuple[Optimizer, ...], Field(min_length=1, max_length=6), Distinct] | None = Field(
        default=None,
        description="Optimizers that a plan may take; that of training if left out. Another optimizer is another "
        "training: to name it here is to consent to its losses. Only the built-in trainer and the integrations sdk and "
        "hf-trainer set it.",
    )
    micro_batch: Annotated[tuple[MicroBatch, ...], Field(min_length=1, max_length=16), Distinct] | None = Field(
        default=None,
        description="Micro-batches that a plan may take, for a script that has one of its own; every one that divides "
        "a GPU's share of training.globalBatchSize if left out.",
    )

    @property
    def opened(self) -> dict[str, tuple[object, ...]]:
        """The choices of knobs that training or the script decides unless the space opens them, by field."""
        fused_loss = self.fused_loss if True in self.fused_loss else ()
        chosen = {"optimizer": self.optimizer, "attention": self.attention, "fusedLoss": fused_loss}
        return {field: choices for field, choices in chosen.items() if choices}


class Tuning(SpecBlock):
    """How the plan is found, and the budget for that."""

    mode: Literal["Probe", "PredictOnly", "Fixed"] = Field(
        default="Probe",
        description="Probe measures plans and launches the best; PredictOnly predicts and starts no pod; "
        "Fixed launches plan, unmeasured.",
    )
    plan: ShortForm | None = Field(
        default=None,
        description="The plan that mode Fixed launches, in the short form that memtune plan prints, "
        "like bf16-z2-sel-mb4x8; needed in that mode, refused in others.",
    )
    space: SpaceSpec = Field(default=left_out(SpaceSpec), description="The choices of each knob that a plan may take.")
    max_probes: Probes = Field(
        default=8,
        description="Most probe runs of the job; one that was taken away, could not start, did not apply its plan, or "
        "is of a plan that tuning.space has no more does not count.",
    )
    parallel_probes: Probes = Field(
        default=1, description="Probe runs at the same time, each on the job's number of GPUs."
    )
    probe_steps: Annotated[Count, Field(le=100)] = Field(
        default=10,
        description="Most optimizer steps of one probe run, each shortened to at most two micro-batches. A probe ends "
        "after its third step, or a later one, if that one and the step before took the same time to 2%.",
    )
    max_gpu_seconds: Annotated[Count, Field(le=MOST)] | None = Field(
        default=None, description="Most GPU-seconds that all probes may take; 600 for each GPU of the job if left out."
    )
    emulation: Emulation = Field(
        default="Never",
        description="Whether plans are emulated before they are probed, in the job's image on a node without GPUs, to "
        "measure their memory. Auto probes only those that fit as emulated; Only launches the one predicted best of "
        "them, without a probe; Never probes at once.",
    )
    headroom: Percent = Field(
        default="6%", description="Share of HBM that a measured plan must leave free to be launched."
    )
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1, max_length=2), Distinct] = Field(
        default=("throughput",),
        description="The quantity to maximize: tokens per second, or free memory. With both, status.front has "
        "the measured plans that no other one beats in both, and the fastest is launched, or the one that slack picks. "
        "With cost in place of throughput the job first takes the GPU product of its nodes with the cheapest predicted "
        "tokens, where the fastest plan is the cheapest.",
    )
    slack: Percent | None = Field(
        default=None,
        description="With both objectives: the smallest measured plan that is slower than the fastest by no more than "
        "this is launched.",
    )
    sampler: Sampler = Field(
        default="MemTune",
        description="The sampler that chooses the next probe: MemTune, by expected improvement under the prediction, "
        "or one of Optuna's after three probes that MemTune chooses. GP needs torch and scipy beside the operator: its "
        "image has them if it is built with GP=true, else the job is Stalled/SamplerMissing. Under memtune run, your "
        "environment needs both.",
    )

    @property
    def fixed_plan(self) -> Plan | None:
        """The plan that mode Fixed launches; None in other modes. Fails for a text that is no plan."""
        return Plan.parse(self.plan) if self.plan else None

    @property
    def headroom_ratio(self) -> float:
        """Headroom as a fraction of 1."""
        return to_ratio(self.headroom)

    @property
    def objective(self) -> str:
        """The objective, or that there are both: on one GPU product what is fastest costs least."""
        if len(self.objectives) > 1:
            return BOTH
        return THROUGHPUT if self.chooses_product else self.objectives[0]

    @property
    def chooses_product(self) -> bool:
        """Whether the job takes the GPU product with the cheapest tokens."""
        return "cost" in self.objectives


class Retry(SpecBlock):
    """Retries after a failed attempt."""

    max_oom_retries: Annotated[Whole, Field(ge=0, le=64)] = Field(
        default=4, description="Most relaunches after an out-of-memory, each on a plan that takes less."
    )
    max_disruptions: Annotated[Whole, Field(ge=0, le=1000)] = Field(
        default=10, description="Most relaunches of the same plan after preemption, eviction or loss of a node."
    )
    node_lost_after_seconds: Annotated[Count, Field(le=86_400)] = Field(
        default=180, description="Seconds that a node may be NotReady before its pods count as lost."
    )
    allow_restart: Flag = Field(
        default=False, description="Whether a run that cannot resume from any checkpoint may start again from step 0."
    )
    consent: Annotated[tuple[Consent, ...], Field(max_length=3), Distinct] = Field(
        default=(),
        description="Downgrades after an out-of-memory that change the numerics of training and are allowed "
        "nevertheless.",
    )
