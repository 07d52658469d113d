"""How long one optimizer step takes, from the rates of the GPU: enough to rank plans before anything ran.

Compute: 6 FLOPs per active parameter and token, and 12 x layers x width x sequence for attention (2204.02311,
appendix B); what recomputation adds is the share of the forward pass that runs again. Communication: ZeRO
(1910.02054, section 7). The part that a backward pass can hide is hidden, the rest is added.
"""

from __future__ import annotations

from typing import NamedTuple

from memtune.gpu import Gpu
from memtune.knobs import Attention, Checkpointing, Offload, Optimizer, Precision
from memtune.plan import Plan
from memtune.predict.recipe import STATE_BYTES
from memtune.predict.shape import Shape
from memtune.workload import Workload

# The share of peak FLOP/s a transformer reaches on many tokens, eager and compiled; Llama-3 8B on H100 in torchtitan's
# published tables is at 0.35 to 0.45.
_BEST_SHARE = 0.40
_BEST_SHARE_COMPILED = 0.48
# Tokens at which half of that share is reached: small micro-batches are bound by launches.
_HALF_TOKENS = 600.0
# How much of the communication hides behind computation: gradients reduce while earlier layers are differentiated; the
# gathers of stage 3 are waited for at every layer.
_HIDDEN_SHARE = 0.7
_HIDDEN_SHARE_GATHERED = 0.5
# The step time's own 97.5% interval.
TRUST = 0.35
# The CPU's AdamW reads and writes at about this many bytes a second (DeepSpeed CPUAdam, 2101.06840, section 5).
_HOST_BYTES_PER_SECOND = 50e9
_NVME_BYTES_PER_SECOND = 5e9


class Pace(NamedTuple):
    """What a family of plans takes: seconds of each sample, of each micro-batch and of each step."""

    sample: float
    launch: float
    links: float
    hidden_share: float
    transfer_sample: float
    transfer: float
    step: float

    def step_seconds(self, micro_batch: int, accumulation: int) -> float:
        """Seconds of one optimizer step: all micro-batches and the optimizer."""
        compute = self.launch + self.sample * micro_batch
        exposed = self.links - min(compute, self.links) * self.hidden_share
        micro = compute + exposed + self.transfer + self.transfer_sample * micro_batch
        return accumulation * micro + self.step


def pace_of(workload: Workload, shape: Shape, plan: Plan) -> Pace:
    """The pace of a plan's family."""
    sample, launch = compute_seconds(workload, shape, plan)
    return Pace(
        sample=sample,
        launch=launch,
        links=communication_seconds(workload, shape, plan),
        hidden_share=_HIDDEN_SHARE_GATHERED if plan.sharding.zero_stage == 3 else _HIDDEN_SHARE,
        transfer_sample=_activation_offload_seconds(workload, shape, plan),
        transfer=_parameter_offload_seconds(workload, shape, plan),
        step=reduce_seconds(workload, shape, plan) + _step(workload, shape, plan),
    )


def flops(gpu: Gpu, precision: Precision) -> float:
    """The GPU's peak in a precision; a GPU that lacks it falls back to fp32, as torch's emulation does."""
    rates = {
        Precision.FP8: gpu.fp8_flops,
        Precision.BF16: gpu.bf16_flops,
        Precision.FP16: gpu.fp16_flops,
        Precision.TF32: gpu.tf32_flops,
        Precision.FP32: gpu.fp32_flops,
    }
    return rates[precision] or gpu.fp32_flops


def recomputed_share(checkpointing: Checkpointing) -> float:
    """The share of the forward pass that runs a second time."""
    return {"none": 0.0, "selective": 0.3, "every": 0.95, "full": 1.0}[checkpointing.mode]


def compute_seconds(workload: Workload, shape: Shape, plan: Plan) -> tuple[float, float]:
    """Forward, backward and recomputation: of each sample, and what each micro-batch adds for its launches.

    Of t tokens a GPU reaches the share best x t / (t + _HALF_TOKENS), so that t tokens take as long as t + _HALF_TOKENS
    would at the best share.
    """
    length = workload.sequence_length
    forward = 2.0 * shape.active + 4.0 * shape.attentions * shape.query * length
    # A frozen base needs no weight gradients: one of the two halves of the backward pass.
    backward = (1.0 if shape.has_adapter else 2.0) * forward
    best = _BEST_SHARE_COMPILED if workload.compiled else _BEST_SHARE
    if plan.precision is Precision.FP8:
        best *= 0.65
    work = forward + backward + recomputed_share(plan.checkpointing) * forward
    token = work / flops(workload.gpu, plan.precision) / best
    scores = 0.0
    if plan.attention is Attention.EAGER:
        scores = 8.0 * shape.attentions * shape.heads * length / workload.gpu.memory_bytes_per_second
    elif plan.attention is Attention.SDPA:
        token *= 1.02
    slower = 1.25 if shape.quantization != "none" else 1.0
    return slower * (token + scores) * length, slower * token * _HALF_TOKENS


def _link(workload: Workload, plan: Plan) -> float:
    spans_nodes = workload.nodes > 1 and plan.sharding.value != "fsdphyb"
    return workload.gpu.node_link_bytes_per_second if spans_nodes else workload.gpu.link_bytes_per_second


def communication_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    """Gathers and reduce-scatters of every micro-batch."""
    if workload.world == 1:
        return 0.0
    wide, stage = 4 if plan.precision in (Precision.FP32, Precision.TF32) else 2, plan.sharding.zero_stage
    gradients = shape.trainable * wide
    weights = shape.total * wide
    keeps_weights = plan.sharding.value == "fsdpsgo"
    moved = {0: 0.0, 1: 0.0, 2: gradients, 3: gradients + (1 if keeps_weights else 2) * weights}[stage]
    # Small buckets start more collectives; each costs about 20 microseconds. FSDP has none: it reduces unit by unit.
    bucketed = stage >= 2 and plan.sharding.backend == "deepspeed"
    launches = 20e-6 * shape.trainable / plan.bucket_elements if bucketed else 0.0
    return moved / _link(workload, plan) + launches


def reduce_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    """What is reduced or gathered once a step: gradients at stages 0 and 1, updated weights at stages 1 and 2."""
    if workload.world == 1:
        return 0.0
    wide = 4 if plan.precision in (Precision.FP32, Precision.TF32) or plan.sharding.backend == "ddp" else 2
    exposed = 1 - _HIDDEN_SHARE
    volume = {0: 2 * exposed, 1: exposed + 1, 2: 1.0, 3: 0.0}[plan.sharding.zero_stage] * shape.trainable * wide
    if plan.sharding.value == "fsdphyb" and workload.nodes > 1:
        sharded = 2.0 * shape.trainable * wide / workload.gpus_per_node
        return sharded / workload.gpu.node_link_bytes_per_second
    return volume / _link(workload, plan)


def _step(workload: Workload, shape: Shape, plan: Plan) -> float:
    """The optimizer: bound by memory, or by the host and its link."""
    shards = workload.world if plan.sharding.zero_stage >= 1 else 1
    parameters = shape.trainable / shards
    touched = parameters * (2 * STATE_BYTES[plan.optimizer] + 12)
    if plan.offload in (Offload.NONE, Offload.ACTIVATIONS):
        passes = 1.0 if plan.fused_optimizer else 1.6
        slow = 3.0 if plan.optimizer is Optimizer.MUON else 1.0
        return passes * slow * touched / workload.gpu.memory_bytes_per_second
    # All ranks of a node share the host's memory bandwidth.
    seconds = touched * workload.gpus_per_node / _HOST_BYTES_PER_SECOND
    seconds += 4.0 * parameters / workload.gpu.host_link_bytes_per_second
    if plan.offload is Offload.NVME:
        seconds += touched * workload.gpus_per_node / _NVME_BYTES_PER_SECOND
    return seconds


def _activation_offload_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    """Of each sample: what it keeps goes to the host and comes back."""
    if plan.offload is not Offload.ACTIVATIONS:
        return 0.0
    width = shape.hidden if plan.checkpointing.mode in ("full", "every") else 8 * shape.hidden
    moved = 2.0 * 2 * width * shape.layers * workload.sequence_length
    return moved / workload.gpu.host_link_bytes_per_second


def _parameter_offload_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    """Of each micro-batch: the rank's shard of the weights comes from the host for the forward and for the backward."""
    if plan.offload not in (Offload.PARAMETERS, Offload.NVME):
        return 0.0
    return 2.0 * 2 * shape.total / workload.world / workload.gpu.host_link_bytes_per_second
