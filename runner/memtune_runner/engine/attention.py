"""Applies a plan's attention kernel to a model, and looks which one the model takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from memtune.plans.knobs import Attention
from memtune_runner.rank import applied_knobs

# A virtual GPU puts another function in the place of torch.nn.functional's, which calls this one.
_SDPA = torch._C._nn.scaled_dot_product_attention


def use_attention(model: nn.Module, attention: Attention) -> None:
    """Select an attention kernel: torch selects flash itself where possible, so only eager must be forced."""
    choose = getattr(model, "set_attn_implementation", None)  # Hugging Face models
    # Some models have only their own attention, whatever the plan says (Bloom, Gemma 2).
    if choose is not None and getattr(model, "_supports_sdpa", True):
        choose("eager" if attention is Attention.EAGER else "sdpa")
    fused = attention is not Attention.EAGER
    # Process-wide switches instead of a context: recomputation in the backward pass must use the same kernel.
    torch.backends.cuda.enable_flash_sdp(fused)
    torch.backends.cuda.enable_mem_efficient_sdp(fused)
    torch.backends.cuda.enable_cudnn_sdp(fused)


class _Calls(TorchFunctionMode):
    """Notes whether torch's attention is called."""

    def __init__(self) -> None:
        super().__init__()
        self.are_any = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.are_any |= function is _SDPA
        return function(*args, **(kwargs or {}))


@contextmanager
def watched(model: nn.Module) -> Iterator[None]:
    """Look which kernel the model's attention takes in its first training pass.

    Not in compiled code: there it would be compiled a second time, without this look.
    """
    looks = applied_knobs.attention() is None and torch.is_grad_enabled() and not _is_compiled(model)
    if not looks:
        yield
        return
    with _Calls() as calls:
        yield
    # Without its fused kernels torch multiplies matrices and keeps the scores, as eager attention does.
    is_fused = calls.are_any and torch.backends.cuda.flash_sdp_enabled()
    applied_knobs.saw_attention((Attention.SDPA if is_fused else Attention.EAGER).value)


def _is_compiled(model: nn.Module) -> bool:
    return any(hasattr(each, "_orig_mod") or each._compiled_call_impl is not None for each in model.modules())
