"""Applies a plan's attention kernel to a model, and looks which one the model takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from memtune.plans.knobs import Attention
from memtune_runner.engine.decoder import SelfAttention
from memtune_runner.rank import applied_knobs


def use_attention(model: nn.Module, attention: Attention) -> None:
    """Select an attention kernel: torch selects flash itself where possible, so only eager must be forced."""
    choose = getattr(model, "set_attn_implementation", None)  # Hugging Face models
    # Some models have only their own attention under any plan (Bloom, Gemma 2).
    if choose is not None and getattr(model, "_supports_sdpa", True):
        choose("eager" if attention is Attention.EAGER else "sdpa")
    fused = attention is not Attention.EAGER
    # Process-wide switches instead of a context: recomputation in the backward pass must use the same kernel.
    torch.backends.cuda.enable_flash_sdp(fused)
    torch.backends.cuda.enable_mem_efficient_sdp(fused)
    torch.backends.cuda.enable_cudnn_sdp(fused)


@contextmanager
def attention_watched(model: nn.Module) -> Iterator[None]:
    """Look which kernel the model's attention takes in a probe's first training pass that shows it.

    Not in compiled modules: there it would be compiled a second time, without this look.
    """
    looks = applied_knobs.attention() is None and torch.is_grad_enabled() and not _is_compiled(model)
    if not looks:
        yield
        return
    is_called = False
    # A virtual GPU has put its own function here.
    plain = functional.scaled_dot_product_attention

    def noting(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal is_called
        is_called = True
        return plain(*args, **kwargs)

    functional.scaled_dot_product_attention = noting
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = plain
    if is_called:
        # Without its fused kernels torch multiplies matrices and keeps the scores, as eager attention does.
        kernel = Attention.SDPA if torch.backends.cuda.flash_sdp_enabled() else Attention.EAGER
        applied_knobs.saw_attention(kernel.value)
    elif any(isinstance(each, SelfAttention) or hasattr(each, "set_attn_implementation") for each in model.modules()):
        # These, our own and Hugging Face's models, call no other function of torch's; of others nothing is known.
        applied_knobs.saw_attention(Attention.EAGER.value)


def _is_compiled(model: nn.Module) -> bool:
    return any(hasattr(each, "_orig_mod") or each._compiled_call_impl is not None for each in model.modules())
