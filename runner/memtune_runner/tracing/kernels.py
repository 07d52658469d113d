"""Operators whose kernels on a GPU make or save other tensors than those on the CPU, traced as the GPU's.

What is read in torch's sources is named at each entry. An entry replaces a function of torch by one that makes the same
tensors as the GPU's kernel (`GpuKernels`), or adds what a kernel makes for itself (`temporary_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_INDEX_BYTES = 8
_FLOAT_BYTES = 4
# Up to here embedding_dense_backward sorts nothing (aten/src/ATen/native/cuda/Embedding.cu).
FEW_INDICES = 3072
_INDEX_COPIES = 6  # sorted and original indices, and four arrays about the segments of equal ones


def temporary_bytes(func: Any, args: tuple[Any, ...]) -> list[int]:
    """What the GPU's kernel of an operator allocates for itself and frees again."""
    if func is torch.ops.aten.embedding_dense_backward.default:
        gradient, indices = args[0], args[1]
        count = indices.numel()
        if count <= FEW_INDICES:
            return []
        # EmbeddingBackwardKernel.cu: an fp32 row for every index, grad_weight_per_segment.
        return [count * _INDEX_BYTES * _INDEX_COPIES, count * gradient.shape[-1] * _FLOAT_BYTES]
    return []


class GpuKernels(TorchFunctionMode):
    """Replaces functions by stand-ins that make what the GPU's kernels make.

    ``attending`` is entered around attention, which selective checkpointing keeps.
    """

    def __init__(self, attending: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._attending = attending

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.scaled_dot_product_attention:
            with self._attending():
                return _attention(*args, **(kwargs or {}))
        return _STAND_INS.get(func, func)(*args, **(kwargs or {}))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *_numbers: Any,
    **_options: Any,
) -> Any:
    return FlashAttention.apply(*autocasted(query, key, value), attn_mask)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def autocasted(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What goes into attention, as autocast casts it: a stand-in is unknown to it."""
    if not torch.is_autocast_enabled("cpu"):
        return inputs
    return tuple(each.to(torch.get_autocast_dtype("cpu")) for each in inputs)


class FlashAttention(torch.autograd.Function):
    """Flash or, with a mask or in fp32, memory-efficient attention: they keep the same, a mask excepted.

    transformers/cuda/flash_attn/flash_api.cpp: mha_fwd returns the output, its logsumexp in fp32 and the state of the
    random numbers; mha_bwd accumulates the query's gradient in fp32 with rounded lengths, and expands those of keys and
    values where heads share them.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        batch, heads, length, _ = query.shape
        # Laid out as the query is: by position, then by head.
        out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        logsumexp = query.new_empty(batch, heads, length, dtype=torch.float32)
        random = query.new_empty(2, dtype=torch.int64)
        ctx.save_for_backward(query, key, value, mask, out, logsumexp, random)
        return out

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        query, key, value, *_ = ctx.saved_tensors
        return (*attention_gradients(query, key, value), None)


def attention_gradients(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Room for the gradients of attention, once what the kernel needs beside them has come and gone."""
    batch, heads, length, width = query.shape
    rounded, wide = _rounded(length, 128), _rounded(width, 32 if width <= 128 else 64)
    made = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    temporaries = [
        query.new_empty(batch, heads, rounded, dtype=torch.float32),
        query.new_empty(batch, rounded, heads, wide, dtype=torch.float32),
    ]
    if key.shape[1] != heads:
        temporaries += [query.new_empty(batch, key.shape[2], heads, width) for _ in range(2)]
    del temporaries
    return made


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _dropout(hidden: torch.Tensor, p: float = 0.5, training: bool = True, **_inplace: bool) -> torch.Tensor:
    """A GPU keeps a mask of one byte an element, the CPU one of the input's own type (native_dropout)."""
    return torch.native_dropout(hidden, p, training)[0] if training and p else hidden


def _rms_norm(
    hidden: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, **_eps: float | None
) -> Any:
    return _FusedRmsNorm.apply(hidden, weight, len(normalized_shape))  # type: ignore[no-untyped-call]  # as above


class _FusedRmsNorm(torch.autograd.Function):
    """layer_norm_kernel.cu, _fused_rms_norm: keeps its input and one fp32 number per row."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor | None, dimensions: int) -> torch.Tensor:
        scales = hidden.new_empty(*hidden.shape[:-dimensions], *[1] * dimensions, dtype=torch.float32)
        ctx.save_for_backward(hidden, weight, scales)
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        hidden, weight, _ = ctx.saved_tensors
        return torch.empty_like(hidden), None if weight is None else torch.empty_like(weight), None


_STAND_INS: dict[Any, Callable[..., Any]] = {
    functional.dropout: _dropout,
    functional.rms_norm: _rms_norm,
}
