"""Attention with dropout on the virtual GPU, keeping the same tensors as a GPU's kernel.

torch's fused CPU kernel has no dropout, so the CPU would keep all scores, which no GPU does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from memtune_runner.tracing.kernels import FlashAttention, attention_gradients, autocasted, is_fused

plain: Callable[..., torch.Tensor] = functional.scaled_dot_product_attention


def is_for_kernel(
    inputs: Sequence[torch.Tensor], mask: torch.Tensor | None, is_causal: bool, shares_heads: bool
) -> bool:
    """Whether a GPU has a fused kernel for these inputs whose gradients are modelled here (a mask's are not)."""
    return is_fused(inputs, mask, is_causal, shares_heads) and not (mask is not None and mask.requires_grad)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Compute ``torch.nn.functional.scaled_dot_product_attention``."""
    compute = partial(plain, dropout_p=dropout_p, is_causal=is_causal, **options)
    if not dropout_p:
        return compute(query, key, value, attn_mask)
    inputs = autocasted(query, key, value)
    if not is_for_kernel(inputs, attn_mask, is_causal, options.get("enable_gqa", False)):
        return compute(*inputs, attn_mask)
    out: torch.Tensor = _Attention.apply(*inputs, attn_mask, compute)  # type: ignore[no-untyped-call]  # as in kernels
    return out


class _Attention(FlashAttention):
    """The GPU kernel's tensors with true values. The backward pass recomputes scores without counting them."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        *tensors, ctx.compute = inputs
        out = FlashAttention.forward(ctx, *tensors)
        with _disable_current_modes():
            ctx.random = torch.get_rng_state()
            return out.copy_(ctx.compute(*tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        # All saved tensors live until the kernel ends.
        query, key, value, mask, *_rest = ctx.saved_tensors
        made = attention_gradients(query, key, value)
        with _disable_current_modes(), torch.enable_grad(), torch.random.fork_rng(devices=()):
            torch.set_rng_state(ctx.random)
            inputs = [each.detach().requires_grad_() for each in (query, key, value)]
            found = torch.autograd.grad(ctx.compute(*inputs, mask), inputs, gradients)
            for room, gradient in zip(made, found, strict=True):
                room.copy_(gradient)
        return (*made, None, None)
