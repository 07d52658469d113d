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


class LinkSeconds(NamedTuple):
    """Communication of each micro-batch, and of each step; neither depends on the size of the micro-batch."""

    micro_batch: float
    step: float
    hidden_share: float


def link_seconds(workload: Workload, shape: Shape, plan: Plan) -> LinkSeconds:
    """What the links are busy with under a plan."""
    share = _HIDDEN_SHARE_GATHERED if plan.sharding.zero_stage == 3 else _HIDDEN_SHARE
    each = communication_seconds(workload, shape, plan)
    return LinkSeconds(each, reduce_seconds(workload, shape, plan), share)


def step_seconds(workload: Workload, shape: Shape, plan: Plan, links: LinkSeconds) -> float:
    """Seconds of one optimizer step: all micro-batches and the optimizer."""
    compute = micro_batch_seconds(workload, shape, plan)
    communication = links.micro_batch
    hidden = min(compute, communication) * links.hidden_share
    micro = compute + communication - hidden + _activation_offload_seconds(workload, shape, plan)
    return plan.accumulation * micro + links.step + _step(workload, shape, plan)


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


def micro_batch_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    """Forward, backward and recomputation of one micro-batch."""
    tokens = plan.micro_batch * workload.sequence_length
    forward = 2.0 * shape.active * tokens + 4.0 * shape.layers * shape.query * workload.sequence_length * tokens
    # A frozen base needs no weight gradients: one of the two halves of the backward pass.
    backward = (1.0 if shape.has_adapter else 2.0) * forward
    best = _BEST_SHARE_COMPILED if workload.compiled else _BEST_SHARE
    if plan.precision is Precision.FP8:
        best *= 0.65
    share = best * tokens / (tokens + _HALF_TOKENS)
    seconds = (
        (forward + backward + recomputed_share(plan.checkpointing) * forward)
        / flops(workload.gpu, plan.precision)
        / share
    )
    if plan.attention is Attention.EAGER:
        scores = 8.0 * shape.layers * shape.heads * workload.sequence_length * tokens
        seconds += scores / workload.gpu.memory_bytes_per_second
    elif plan.attention is Attention.SDPA:
        seconds *= 1.02
    if shape.quantization != "none":
        seconds *= 1.25
    return seconds


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
    # Small buckets start more collectives; each costs about 20 microseconds.
    launches = 20e-6 * shape.trainable / plan.bucket_elements if stage >= 2 else 0.0
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
    if plan.offload in (Offload.PARAMETERS, Offload.NVME):
        moved = 2.0 * 2 * shape.total / shards * plan.accumulation
        seconds += moved / workload.gpu.host_link_bytes_per_second
    if plan.offload is Offload.NVME:
        seconds += touched * workload.gpus_per_node / _NVME_BYTES_PER_SECOND
    return seconds


def _activation_offload_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    if plan.offload is not Offload.ACTIVATIONS:
        return 0.0
    width = shape.hidden if plan.checkpointing.mode in ("full", "every") else 8 * shape.hidden
    moved = 2.0 * 2 * width * shape.layers * plan.micro_batch * workload.sequence_length
    return moved / workload.gpu.host_link_bytes_per_second
