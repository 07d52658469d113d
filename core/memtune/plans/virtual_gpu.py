"""What a virtual GPU cannot carry out: it counts CPU tensors, and computes as a CPU does."""

from __future__ import annotations

from memtune.plans.knobs import Offload, Precision
from memtune.plans.plan import Plan


def virtual_refusal(plan: Plan) -> str | None:
    """Why a plan cannot be rehearsed; None if it can."""
    if plan.precision is Precision.FP8:
        return "a virtual GPU has no fp8; use bf16"
    if plan.offload is Offload.NONE:
        return None
    return (
        f"offload {plan.offload} cannot be measured on a virtual GPU: what is on the GPU and what is on the host "
        "are CPU tensors alike there; use device cuda, or a plan without offload"
    )
