"""Generates the DeepSpeed configuration that carries out a plan.

Every setting that costs memory is explicit, even if it equals DeepSpeed's default, so that predictions do not depend on
DeepSpeed's version. The optimizer and the scheduler stay the script's own.
"""

from __future__ import annotations

from typing import Any

from memtune.plans.knobs import GradientDtype, Offload, Precision
from memtune.plans.plan import Plan

# One knob scales every bucket, in the proportions of DeepSpeed's defaults (deepspeed/runtime/zero/config.py).
MAX_LIVE_BUCKETS = 2
PREFETCHES_PER_BUCKET = 10
# The number of elements that stage 3 steps at a time: DeepSpeed's default.
SUB_GROUP_ELEMENTS = 1_000_000_000
# Stage 3 does not shard weights this small: DeepSpeed's default.
PERSISTENT_ELEMENTS = 100_000
# Weights on NVMe pass through buffers in host memory; no rank's part of a weight may be larger. DeepSpeed's defaults.
NVME_BUFFERS = 5
NVME_BUFFER_ELEMENTS = 100_000_000
_MODEL_DTYPES = {Precision.FP8: "bf16", Precision.BF16: "bf16", Precision.FP16: "fp16"}


def deepspeed_config(plan: Plan, world: int, nvme_path: str | None = None) -> dict[str, Any]:
    """The complete JSON for ``world`` ranks. ``nvme_path`` is where an NVMe offload writes to."""
    if plan.sharding.backend != "deepspeed":
        raise ValueError(f"plan {plan}: {plan.sharding} is no plan for DeepSpeed; only z0 to z3 are")
    if plan.offload is Offload.NVME and nvme_path is None:
        raise ValueError(f"plan {plan}: offload to NVMe needs a path; give the mount point of a local disk")
    return {
        "train_batch_size": plan.global_batch(world),
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        **_precision(plan),
        "zero_optimization": _zero(plan, nvme_path),
        # ZeRO refuses optimizers it does not know by name, although it needs nothing special of them.
        "zero_allow_untested_optimizer": True,
        # Offload would refuse every optimizer but DeepSpeed's own, which would have to be compiled in the user's image.
        "zero_force_ds_cpu_optimizer": False,
    }


def _precision(plan: Plan) -> dict[str, Any]:
    """DeepSpeed's precision; fp8 and tf32 only exist inside matrix products: to DeepSpeed they are bf16 and fp32."""
    dtype = _MODEL_DTYPES.get(plan.precision, "fp32")
    gradient_dtype = "fp32" if plan.gradient_dtype is GradientDtype.FP32 else dtype
    return {
        "bf16": {"enabled": dtype == "bf16"},
        "fp16": {"enabled": dtype == "fp16"},
        "data_types": {"grad_accum_dtype": gradient_dtype},
    }


def _zero(plan: Plan, nvme_path: str | None) -> dict[str, Any]:
    stage = plan.sharding.zero_stage
    return {
        "stage": stage,
        "contiguous_gradients": True,
        "reduce_bucket_size": plan.bucket_elements,
        "allgather_bucket_size": plan.bucket_elements,
        # Overlapping costs a second bucket below stage 3; at stage 3 it hides the gathering.
        "overlap_comm": stage == 3,
        **(_stage_3(plan) if stage == 3 else {}),
        **_offload(plan, nvme_path),
    }


def _stage_3(plan: Plan) -> dict[str, Any]:
    return {
        "stage3_prefetch_bucket_size": plan.bucket_elements // PREFETCHES_PER_BUCKET,
        "stage3_max_live_parameters": plan.bucket_elements * MAX_LIVE_BUCKETS,
        "stage3_max_reuse_distance": plan.bucket_elements * MAX_LIVE_BUCKETS,
        "stage3_param_persistence_threshold": PERSISTENT_ELEMENTS,
        "sub_group_size": SUB_GROUP_ELEMENTS,
        # DeepSpeed's own linear layers add the bias to the product in place.
        "memory_efficient_linear": not plan.checkpointing.keeps_products,
        # Without it, a script's saved model consists of the ranks' shards, or saving fails.
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def _offload(plan: Plan, nvme_path: str | None) -> dict[str, Any]:
    if plan.offload in (Offload.NONE, Offload.ACTIVATIONS):
        return {}  # saved-tensor hooks offload activations, without DeepSpeed
    place: dict[str, Any] = {"device": "cpu", "pin_memory": True}
    if plan.offload is Offload.NVME:
        place |= {"device": "nvme", "nvme_path": nvme_path}
    if plan.offload is Offload.OPTIMIZER:
        return {"offload_optimizer": place}
    buffers = {"buffer_count": NVME_BUFFERS, "buffer_size": NVME_BUFFER_ELEMENTS}
    return {
        "offload_optimizer": place,
        "offload_param": {**place, **(buffers if plan.offload is Offload.NVME else {})},
    }
