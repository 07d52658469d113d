"""Applies a plan's number formats to weights and matrix products, and its attention kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from memtune.plans.knobs import Precision
from memtune.plans.plan import Plan
from memtune_runner.engine.attention import use_attention
from memtune_runner.rank.plan_refusals import PlanError

_COMPUTE_DTYPES = {Precision.FP8: torch.bfloat16, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
_FIRST_WITH_FP8 = (8, 9)  # Ada
_FP8_MULTIPLE = 16  # torch._scaled_mm accepts only multiples


def compute_dtype(plan: Plan) -> torch.dtype:
    """Return the number format of tensors in matrix products."""
    return _COMPUTE_DTYPES.get(plan.precision, torch.float32)


def autocast(plan: Plan, device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast context of a loss, whose sums stay in fp32."""
    dtype = compute_dtype(plan)
    return nullcontext() if dtype is torch.float32 else torch.autocast(device.type, dtype=dtype)


def prepare(model: nn.Module, plan: Plan, device: torch.device) -> None:
    """Apply process-wide settings, and replace layers by fp8 ones if the plan asks for it."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if plan.precision is Precision.TF32 else "highest")
        torch.backends.cudnn.allow_tf32 = plan.precision is Precision.TF32
    if plan.precision is Precision.FP8:
        _use_fp8(model, plan, device)
    use_attention(model, plan.attention)


def cast_weights(model: nn.Module, plan: Plan) -> None:
    """Cast trainable weights to fp32 and frozen ones to the compute format; quantized weights are not floats."""
    for each in model.parameters():
        if each.is_floating_point():
            each.data = each.data.to(torch.float32 if each.requires_grad else compute_dtype(plan))


class CastInputs:
    """A forward pre-hook that casts inputs to the format of the model's weights."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(self, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map_only(torch.Tensor, self._cast, (args, kwargs))

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


def _use_fp8(model: nn.Module, plan: Plan, device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _FIRST_WITH_FP8:
        raise PlanError(f"plan {plan}: this GPU has no fp8, which came with Ada and Hopper; use bf16")
    try:
        from torchao.float8 import convert_to_float8_training  # type: ignore[import-not-found]  # no dependency of ours
    except ImportError:
        raise PlanError(f"plan {plan}: fp8 needs torchao; add it to the image, or use bf16") from None
    convert_to_float8_training(model, module_filter_fn=_suits_fp8)


def _suits_fp8(module: nn.Module, _name: str) -> bool:
    return isinstance(module, nn.Linear) and not (
        module.in_features % _FP8_MULTIPLE or module.out_features % _FP8_MULTIPLE
    )
