"""Generates the FSDP2 settings that carry out a plan: the arguments of ``fully_shard``, as plain values.

Weights, gradients and optimizer state stay fp32 shards; a unit is cast while it is gathered.
"""

from __future__ import annotations

from typing import Any

from memtune.plans.knobs import GradientDtype, Offload, Precision, Sharding
from memtune.plans.plan import Plan

# fp8 and tf32 only exist inside matrix products: to FSDP they are bf16 and fp32.
_COMPUTE_DTYPES = {Precision.FP8: "bf16", Precision.BF16: "bf16", Precision.FP16: "fp16"}


def fsdp_config(plan: Plan, nodes: int, gpus_per_node: int) -> dict[str, Any]:
    """The settings for every unit: each repeated block of the model, and the root that holds the rest."""
    if plan.sharding.backend != "fsdp":
        raise ValueError(f"plan {plan}: {plan.sharding} is no plan for FSDP; only fsdp, fsdpsgo and fsdphyb are")
    dtype = _COMPUTE_DTYPES.get(plan.precision, "fp32")
    return {
        "mesh": _mesh(plan, nodes, gpus_per_node),
        "reshard_after_forward": plan.sharding is not Sharding.FSDP_SHARD_GRAD_OP,
        "mp_policy": {
            "param_dtype": dtype,
            "reduce_dtype": "fp32" if plan.gradient_dtype is GradientDtype.FP32 else dtype,
            "output_dtype": None,
            "cast_forward_inputs": True,
        },
        "offload_policy": _offload(plan),
    }


def _mesh(plan: Plan, nodes: int, gpus_per_node: int) -> dict[str, int]:
    """The dimensions of the device mesh, outermost first: hybrid sharding within a node, replicas across nodes."""
    if plan.sharding is Sharding.FSDP_HYBRID:
        return {"replicate": nodes, "shard": gpus_per_node}
    return {"shard": nodes * gpus_per_node}


def _offload(plan: Plan) -> dict[str, Any] | None:
    """FSDP2's only offload: parameters, gradients and optimizer state together."""
    return {"pin_memory": True} if plan.offload is Offload.PARAMETERS else None
