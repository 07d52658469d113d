"""Why a plan cannot run: on any GPU, on one kind of GPU, or on a virtual GPU.

`Plan` itself refuses combinations that no plan can have, such as DDP with offloaded parameters.
"""

from __future__ import annotations

from memtune.gpus.gpu import Gpu
from memtune.plans.knobs import Attention, GradientDtype, Offload, Optimizer, Precision
from memtune.plans.plan import Plan


def contradiction(plan: Plan) -> str | None:
    """Why this plan cannot or should not run for any workload and GPU; None if it can."""
    if plan.attention is Attention.FLASH and not has_flash(plan):
        return f"flash attention has no {plan.precision} kernel; use sdpa"
    if plan.offloads_states and plan.sharding.zero_stage == 0:
        return f"offload {plan.offload} needs ZeRO 1 or more, or FSDP"
    if plan.offloads_states and plan.optimizer is Optimizer.ADAMW_8BIT:
        return "the 8-bit optimizer has no CPU kernel; offload needs a full-precision optimizer"
    return backend_refusal(plan)


def has_flash(plan: Plan) -> bool:
    """Whether there is a flash kernel for the format that the plan computes in."""
    return plan.compute_bytes == 2


def backend_refusal(plan: Plan) -> str | None:
    """Why the plan's library, DeepSpeed or FSDP, cannot carry it out; None if it can."""
    backend = plan.sharding.backend
    return _deepspeed_refusal(plan) if backend == "deepspeed" else _fsdp_refusal(plan) if backend == "fsdp" else None


def _deepspeed_refusal(plan: Plan) -> str | None:
    # DeepSpeed gathers matrices only for its own Muon (zero/muon), and the optimizer stays the script's.
    if plan.sharding.zero_stage and plan.optimizer in (Optimizer.MUON, Optimizer.ADAFACTOR):
        others = "z0 or ddp" if plan.optimizer is Optimizer.ADAFACTOR else "z0, ddp or fsdp"
        return f"{plan.optimizer} works on whole matrices, ZeRO hands it flat pieces; use {others}"
    has_16_bits = plan.compute_bytes == 2
    if not plan.sharding.zero_stage and plan.gradient_dtype is GradientDtype.FP32 and has_16_bits:
        # deepspeed/runtime/engine.py, _do_optimizer_sanity_check: "unsupported mix"
        return (
            f"DeepSpeed keeps no fp32 gradients of {plan.precision} weights at stage 0; use z1 or gradientDtype model"
        )
    return None


def _fsdp_refusal(plan: Plan) -> str | None:
    if plan.optimizer is Optimizer.ADAFACTOR:
        # Neither torch's nor transformers' can step on DTensors, whose norms and means have another placement.
        return "adafactor works on whole matrices, FSDP hands it shards; use z0 or ddp"
    return None


def gpu_refusal(plan: Plan, gpu: Gpu) -> str | None:
    """Why this kind of GPU cannot compute in the plan's precision; None if it can."""
    if plan.precision in (Precision.BF16, Precision.FP8) and not gpu.bf16_flops:
        return f"{gpu.name} has no {plan.precision}; use fp16 or fp32"
    if plan.precision is Precision.FP8 and gpu.fp8_flops <= gpu.bf16_flops:
        return f"{gpu.name} has no fp8; use bf16"
    return None


def virtual_refusal(plan: Plan) -> str | None:
    """Why a plan cannot be rehearsed; None if it can."""
    if plan.precision is Precision.FP8:
        return "a virtual GPU has no fp8; use bf16"
    if plan.offload is Offload.NONE:
        return None
    return (
        f"offload {plan.offload} cannot be measured on a virtual GPU: tensors of the GPU and of the host "
        "are CPU tensors there; use device cuda, or a plan without offload"
    )
