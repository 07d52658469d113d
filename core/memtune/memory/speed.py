"""Predicts the time of one optimizer step from the GPU's rates, to rank plans before anything ran.

Compute: 6 FLOPs per active parameter and token, embeddings apart, and 12 x layers x width x sequence for attention
(2204.02311, appendix B); recomputation adds the share of the forward pass that runs again, and a fused loss may that of
the head. Between the matrix products a layer reads and writes its activations, which costs memory bandwidth.
Communication: ZeRO (1910.02054, section 7); the part that computation can hide is hidden, the rest is added.
bench/throughput.py compares with published throughputs.
"""

from __future__ import annotations

from typing import NamedTuple

from memtune.gpus.gpu import Gpu
from memtune.gpus.operations import LAUNCH_SECONDS, LINK_SHARE
from memtune.memory.formulas.recipe import attention_of, sharding_ranks
from memtune.memory.formulas.shape import Shape
from memtune.memory.prediction import Interval
from memtune.memory.workload import Workload
from memtune.plans.knobs import (
    Attention,
    Checkpointing,
    GradientDtype,
    Offload,
    Optimizer,
    Precision,
    Sharding,
)
from memtune.plans.plan import Plan

# Five constants were chosen with bench/data/measured_throughput.csv in view: the traffic, with and without a compiler,
# the share of a link, and the overlap.
# The traffic is what a layer reads and writes between its matrix products, in hidden states of a token per pass; a
# compiler fuses a part of it.
_TRAFFIC = 94.0
_TRAFFIC_COMPILED = 56.0
# The share that fp8 products reach of their higher peak, relative to that of bf16 products: 0.709 and 0.803 on an H100
# (the table of matrix products that core/memtune/gpus/gpu.py names).
_FP8_SHARE = 0.88
# Kernel launches of a layer per pass. They bound tiny micro-batches.
_LAUNCHES = 20
# How much communication hides behind computation: gradients reduce while earlier layers are differentiated; every layer
# waits for the gathers of stage 3.
_HIDDEN_SHARE = 0.7
_HIDDEN_SHARE_GATHERED = 0.5
# The half-width of the step time's 95% interval.
TRUST = 0.35
# The factor of a step time before any measurement: an interval that holds published runs.
UNMEASURED = Interval(1 / (1 + TRUST), 1.0, 1 + TRUST)
# Bytes per second that the CPU's AdamW reads and writes (DeepSpeed CPUAdam, 2101.06840, section 5).
_HOST_BYTES_PER_SECOND = 50e9
_NVME_BYTES_PER_SECOND = 5e9


class Pace(NamedTuple):
    """The pace of a family of plans: seconds per sample, per micro-batch and per step."""

    sample: float
    launch: float
    links: float
    hidden_share: float
    transfer_sample: float
    transfer: float
    reduce: float
    step: float

    def parts(self, micro_batch: int, accumulation: int) -> dict[str, float]:
        """Seconds of one optimizer step by what takes them: all micro-batches, the last reduction, the optimizer."""
        compute = self.launch + self.sample * micro_batch
        return {
            "compute": accumulation * self.sample * micro_batch,
            "launch": accumulation * self.launch,
            "links": accumulation * (self.links - min(compute, self.links) * self.hidden_share),
            "transfer": accumulation * (self.transfer + self.transfer_sample * micro_batch),
            "reduce": self.reduce,
            "step": self.step,
        }

    def step_seconds(self, micro_batch: int, accumulation: int) -> float:
        """Seconds of one optimizer step."""
        return sum(self.parts(micro_batch, accumulation).values())


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
        reduce=reduce_seconds(workload, shape, plan),
        step=_step(workload, shape, plan),
    )


def flops(gpu: Gpu, precision: Precision) -> float:
    """The GPU's peak in a precision; a GPU without it falls back to fp32, as torch's emulation does."""
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
    """Forward, backward and recomputation: seconds per sample, and the minimum per micro-batch."""
    gpu, length = workload.gpu, workload.sequence_length
    repeated = recomputed_share(plan.checkpointing)
    passes = 3.0 + repeated
    # A frozen base needs no weight gradients, which are half of its products in the backward pass.
    once = 2.0 if shape.has_adapter else 3.0
    # The head is no layer, and not recomputed.
    weights = (once + repeated) * shape.multiplied + once * shape.hidden * shape.vocab
    peak = flops(gpu, plan.precision) * (_FP8_SHARE if plan.precision is Precision.FP8 else 1.0)
    # Attention has no fp8 kernel.
    attention_peak = flops(gpu, Precision.BF16 if plan.precision is Precision.FP8 else plan.precision)
    products = 2.0 * weights / (peak * gpu.matmul_share)
    # The half that a causal mask hides is counted, too.
    scores = 4.0 * shape.attentions * shape.query * length / (attention_peak * gpu.attention_share)
    traffic = plan.compute_bytes * _traffic(workload) * shape.hidden * shape.layers / gpu.memory_bytes_per_second
    # Weights are read once a pass, and kernels started, for one token as for many.
    launch = (plan.compute_bytes * shape.active + _dequantized(shape, plan)) / gpu.memory_bytes_per_second
    launch = (once + repeated) * (launch + _LAUNCHES * LAUNCH_SECONDS * shape.layers)
    slower = _slowdown(shape, plan)
    sample = slower * (products + passes * (scores + traffic)) * length
    sample += _eager_attention_seconds(workload, shape, plan)
    return sample + _recomputed_loss_seconds(workload, shape, plan, peak), slower * launch


def _traffic(workload: Workload) -> float:
    return _TRAFFIC_COMPILED if workload.compiled else _TRAFFIC


def _dequantized(shape: Shape, plan: Plan) -> float:
    """Bytes per pass: weights in 4 bits are read with their scales, and written in compute precision before use."""
    return (0.5 + 4 / 64 + plan.compute_bytes) * shape.quantizable if shape.quantization == "nf4" else 0.0


def _slowdown(shape: Shape, plan: Plan) -> float:
    # Keys and values repeated for every head; products in 8 bits, whose factor was compared with no run.
    repeated = 1.02 if plan.attention is Attention.SDPA else 1.0
    return repeated * (1.25 if shape.quantization == "int8" else 1.0)


def _eager_attention_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    if attention_of(workload, plan) is not Attention.EAGER:
        return 0.0
    return 8.0 * shape.attentions * shape.heads * workload.sequence_length**2 / workload.gpu.memory_bytes_per_second


def _recomputed_loss_seconds(workload: Workload, shape: Shape, plan: Plan, peak: float) -> float:
    """Per sample: a fused loss that checkpoints its parts makes the logits again in the backward pass.

    The head's product of 2 FLOPs per weight and token, and its logits: written and read in compute precision, and in
    fp32 written as the copy, read and written by the softmax (engine/decoder.py; the same in 2411.09009, section 4.3).
    A kernel that makes the gradients in the forward pass (2410.10989, section 3.2) repeats nothing: the rows of Liger
    in bench/data/measured_sweeps.csv are as fast as those beside them.
    """
    if not (plan.fused_loss and workload.recomputes_loss):
        return 0.0
    product = 2.0 * shape.hidden * shape.vocab / (peak * workload.gpu.matmul_share)
    traffic = (2.0 * plan.compute_bytes + 12.0) * shape.vocab / workload.gpu.memory_bytes_per_second
    return (product + traffic) * workload.sequence_length


def _link(workload: Workload, plan: Plan) -> float:
    """The bandwidth that collectives reach. Between nodes, every GPU's share of the network carries a part."""
    gpu, spans_nodes = workload.gpu, workload.nodes > 1 and plan.sharding.value != "fsdphyb"
    network = gpu.node_link_bytes_per_second * workload.gpus_per_node
    return LINK_SHARE * (min(gpu.link_bytes_per_second, network) if spans_nodes else gpu.link_bytes_per_second)


def communication_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    """Gathers and reduce-scatters of every micro-batch."""
    if workload.world == 1:
        return 0.0
    gradients = shape.trainable * _gradient_wide(plan)
    weights, stage = shape.total * plan.compute_bytes, plan.sharding.zero_stage
    keeps_weights = plan.sharding.value == "fsdpsgo"
    moved = {0: 0.0, 1: 0.0, 2: gradients, 3: gradients + (1 if keeps_weights else 2) * weights}[stage]
    # Small buckets need more collectives; each costs about 20 microseconds. FSDP has none: it reduces unit by unit.
    bucketed = stage >= 2 and plan.sharding.backend == "deepspeed"
    launches = 20e-6 * shape.trainable / plan.bucket_elements if bucketed else 0.0
    return moved * (1 - 1 / workload.world) / _link(workload, plan) + launches


def _gradient_wide(plan: Plan) -> int:
    """Bytes of a gradient in the reduction: DDP's are fp32 like its weights; the plan chooses FSDP's."""
    if plan.sharding is Sharding.DDP or (plan.sharding.backend == "fsdp" and plan.gradient_dtype is GradientDtype.FP32):
        return 4
    return plan.compute_bytes


def reduce_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    """Communication once per step: gradients at stages 0 and 1, updated weights at stages 1 and 2."""
    if workload.world == 1:
        return 0.0
    wide = _gradient_wide(plan)
    exposed = 1 - _HIDDEN_SHARE
    volume = {0: 2 * exposed, 1: exposed + 1, 2: 1.0, 3: 0.0}[plan.sharding.zero_stage] * shape.trainable * wide
    if plan.sharding.value == "fsdphyb" and workload.nodes > 1:
        sharded = 2.0 * shape.trainable * wide / workload.gpus_per_node
        return sharded / (LINK_SHARE * workload.gpu.node_link_bytes_per_second)
    return volume * (1 - 1 / workload.world) / _link(workload, plan)


def _step(workload: Workload, shape: Shape, plan: Plan) -> float:
    """The optimizer: bound by memory, or by the host and its link."""
    shards = sharding_ranks(workload, plan) if plan.sharding.zero_stage >= 1 else 1
    parameters = shape.trainable / shards
    optimizer = workload.optimizer_bytes(plan.optimizer)
    touched = 12 * parameters + 2 * (optimizer.states * parameters + optimizer.outside * shape.outside / shards)
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
    """Per sample: kept activations move to the host and back."""
    if plan.offload is not Offload.ACTIVATIONS:
        return 0.0
    width = shape.hidden if plan.checkpointing.mode in ("full", "every") else 8 * shape.hidden
    moved = 2.0 * plan.compute_bytes * width * shape.layers * workload.sequence_length
    return moved / workload.gpu.host_link_bytes_per_second


def _parameter_offload_seconds(workload: Workload, shape: Shape, plan: Plan) -> float:
    """Per micro-batch: the rank's weight shard comes from the host for the forward and for the backward.

    DeepSpeed's is in compute precision; FSDP's is fp32, and offloaded with the optimizer (CPUOffloadPolicy).
    """
    if not plan.offloads_weights:
        return 0.0
    width = 4 if plan.sharding.backend == "fsdp" else plan.compute_bytes
    shard_bytes = width * shape.total / sharding_ranks(workload, plan)
    return 2.0 * shard_bytes / workload.gpu.host_link_bytes_per_second
