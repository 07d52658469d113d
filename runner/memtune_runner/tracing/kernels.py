"""Replaces operators whose GPU kernels allocate or save other tensors than those of the CPU.

Each entry names its source in torch. An entry replaces an operator by one that creates the same tensors as the GPU's
kernel (`gpu_kernels`), or adds a kernel's temporary memory (`temporary_bytes`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch.library import Library
from torch.nn import functional

from memtune_runner.tracing.adaptations import replaced

_INDEX_BYTES = 8
_FLOAT_BYTES = 4
_HALF = (torch.float16, torch.bfloat16)
_WIDTH_ALIGNMENT = 8  # attention.cpp, scaled_dot_product_attention
_ROW_ALIGNMENT_BYTES = 16  # sdp_utils.cpp, minimum_gemm_alignment
_WIDEST_FLASH = 256  # sdp_utils.cpp, check_head_dim_size_flash
_BIAS_ALIGNMENT = 8  # attention.cpp, preprocess_mask
_BIAS_GRADIENT_ALIGNMENT = 16  # attention_backward.cu, _efficient_attention_backward
# Up to this number embedding_dense_backward does not sort (aten/src/ATen/native/cuda/Embedding.cu).
FEW_INDICES = 3072
_INDEX_COPIES = 6  # sorted and original indices, and four arrays about the segments of equal ones


def temporary_bytes(func: Any, args: tuple[Any, ...]) -> list[int]:
    """Return the temporary allocations of an operator's GPU kernel."""
    if func is torch.ops.aten.embedding_dense_backward.default:
        gradient, indices = args[0], args[1]
        count = indices.numel()
        if count <= FEW_INDICES:
            return []
        # EmbeddingBackwardKernel.cu: an fp32 row for every index, grad_weight_per_segment.
        return [count * _INDEX_BYTES * _INDEX_COPIES, count * gradient.shape[-1] * _FLOAT_BYTES]
    return []


@contextmanager
def gpu_kernels(attending: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let operators create what the GPU's kernels create.

    ``attending`` is entered around attention, which selective checkpointing keeps.
    """
    kernels: dict[str, Callable[..., Any]] = {
        "scaled_dot_product_attention": partial(_attention, attending),
        "dropout": _dropout,
        "rms_norm": _rms_norm,
    }
    # A frozen TransformerEncoderLayer would be a single operator that hides its allocations.
    fastpath = replaced(torch.backends.mha, "_is_fastpath_enabled", False)
    with registered("AutogradCPU", kernels), fastpath, _by_cells():
        yield


@contextmanager
def _by_cells() -> Iterator[None]:
    """Run LSTMs cell by cell, as GRUs: without data, oneDNN's kernel claims to keep nothing of its gates."""
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


@contextmanager
def registered(key: str, kernels: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Register kernels of torch's operators for a dispatch key, for calls from Python and from C++."""
    library = Library("aten", "IMPL", key)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel exists
            for operator, kernel in kernels.items():
                library.impl(operator, kernel)
        yield
    finally:
        library._destroy()


def _attention(
    attending: Callable[[], AbstractContextManager[None]],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    inputs, shares_heads = (query, key, value), options.get("enable_gqa", False)
    mask = _as_numbers(attn_mask, query)
    if _flash_takes(inputs, attn_mask, is_causal, shares_heads):
        return _padded_flash(attending, inputs)
    if _efficient_takes(inputs, attn_mask):
        bias = None if mask is None else _aligned(mask).expand(*query.shape[:3], key.shape[2])
        with attending():
            return FlashAttention.apply(*inputs, bias)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    # Otherwise the scores are materialized, by the backend that torch calls math.
    return torch.ops.aten._scaled_dot_product_attention_math(*inputs, mask, dropout_p, is_causal, **options)[0]


def _padded_flash(attending: Callable[[], AbstractContextManager[None]], inputs: Sequence[torch.Tensor]) -> Any:
    """attention.cpp, pad_last_dim: heads of an odd width are padded before the kernel, which keeps them padded."""
    width = inputs[0].shape[-1]
    missing = -width % _WIDTH_ALIGNMENT
    if missing:
        inputs = [functional.pad(each, (0, missing)) for each in inputs]
    with attending():
        made = FlashAttention.apply(*inputs, None)  # type: ignore[no-untyped-call]  # as above
    return made[..., :width] if missing else made


# sdp_utils.cpp of torch 2.13 (select_sdp_backend) chooses attention's kernel: flash, else memory-efficient, else math.
# On Hopper and on Blackwell's data center GPUs, a recent cuDNN comes first and keeps the same as flash. Only cuDNN
# supports shared heads together with a mask; on every other GPU these materialize the scores.


def is_fused(inputs: Sequence[torch.Tensor], mask: torch.Tensor | None, is_causal: bool, shares_heads: bool) -> bool:
    """Whether a single kernel computes attention, without materializing all scores."""
    return _flash_takes(inputs, mask, is_causal, shares_heads) or _efficient_takes(inputs, mask)


def _flash_takes(
    inputs: Sequence[torch.Tensor], mask: torch.Tensor | None, is_causal: bool, shares_heads: bool
) -> bool:
    """can_use_flash_attention: 16 bits, no mask, heads of one width, and square if causal."""
    query, key, value = inputs
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and _are_dense(inputs, mask)
        and (_has_own_heads(inputs) or (shares_heads and _has_shared_heads(inputs)))
        and mask is None
        and query.dtype in _HALF
        and query.shape[3] == key.shape[3] == value.shape[3] <= _WIDEST_FLASH
        and not (is_causal and query.shape[2] != key.shape[2])
    )


def _efficient_takes(inputs: Sequence[torch.Tensor], mask: torch.Tensor | None) -> bool:
    """can_use_mem_efficient_attention, since Ampere: also fp32, any mask and width of values, but no shared heads."""
    query, key, _ = inputs
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and _are_dense(inputs, mask)
        and _has_own_heads(inputs)
        and query.dtype in (*_HALF, torch.float32)
        and query.shape[3] == key.shape[3]
        and not any(each.shape[3] * each.element_size() % _ROW_ALIGNMENT_BYTES for each in inputs)
    )


def _are_dense(inputs: Sequence[torch.Tensor], mask: torch.Tensor | None) -> bool:
    """sdp_utils_cpp.h: check_tensor_shapes, same_batch_size, check_nonzero_sequence_lengths_dense and
    check_last_dim_stride_equals_1_dense.
    """
    strided = inputs if mask is None else (*inputs, mask)
    return (
        all(each.dim() == 4 and each.shape[2] for each in inputs)
        and len({each.shape[0] for each in inputs}) == 1
        and all(each.stride(-1) == 1 for each in strided)
    )


def _has_own_heads(inputs: Sequence[torch.Tensor]) -> bool:
    return len({each.shape[1] for each in inputs}) == 1


def _has_shared_heads(inputs: Sequence[torch.Tensor]) -> bool:
    """sdp_utils_cpp.h, check_grouped_query_attention."""
    query, key, value = (each.shape[1] for each in inputs)
    return key == value and query % key == 0


def _as_numbers(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """attention.cpp, convert_boolean_attn_mask: numbers to add, one for each element of the mask."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, query.new_full((), float("-inf")))


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """attention.cpp, preprocess_mask: a mask with unaligned rows is copied to an aligned one."""
    *steps, last = mask.stride()
    if last == 1 and not any(step % _BIAS_ALIGNMENT for step in steps):
        return mask
    width = mask.shape[-1]
    return functional.pad(mask, (0, _BIAS_ALIGNMENT - width % _BIAS_ALIGNMENT))[..., :width]


def autocasted(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cast the inputs of attention as autocast would, for a replacement that autocast does not see."""
    if not torch.is_autocast_enabled("cpu"):
        return inputs
    return tuple(each.to(torch.get_autocast_dtype("cpu")) for each in inputs)


class FlashAttention(torch.autograd.Function):
    """Flash or, with a mask or in fp32, memory-efficient attention: both keep the same, except for a mask.

    transformers/cuda/flash_attn/flash_api.cpp: mha_fwd returns the output, its logsumexp in fp32 and the state of the
    random numbers; mha_bwd accumulates the query's gradient in fp32 with rounded lengths, and expands those of keys and
    values if heads share them. transformers/cuda/attention_backward.cu: the gradient of a trainable mask is as large as
    all scores, and autograd sums it to the shape before expansion.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        batch, heads, length, _ = query.shape
        # Laid out like the query: by position, then by head.
        out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        logsumexp = query.new_empty(batch, heads, length, dtype=torch.float32)
        random = query.new_empty(2, dtype=torch.int64)
        ctx.save_for_backward(query, key, value, mask, out, logsumexp, random)
        return out

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        query, key, value, mask, *_ = ctx.saved_tensors
        made = attention_gradients(query, key, value)
        return (*made, _mask_gradient(mask) if ctx.needs_input_grad[3] else None)


def attention_gradients(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Allocate the gradients of attention, after allocating and freeing the kernel's temporaries."""
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


def _mask_gradient(mask: torch.Tensor) -> torch.Tensor:
    *scores, width = mask.shape
    return mask.new_empty(*scores, _rounded(width, _BIAS_GRADIENT_ALIGNMENT))[..., :width]


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _dropout(hidden: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """native_dropout: a GPU keeps a mask of one byte per element, the CPU one of the input's type."""
    return torch.native_dropout(hidden, p, train)[0] if train and p else hidden


def _rms_norm(
    hidden: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if weight is not None and weight.dtype is not hidden.dtype:  # layer_norm.cpp, rms_norm_symint: not fused
        return torch.ops.aten.rms_norm.default.decompose(hidden, normalized_shape, weight, eps)
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
