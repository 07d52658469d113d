"""Makes autocast cast as on a GPU while tracing on the CPU, whose list of operators differs.

The tables are those of torch's ATen/autocast_mode.h. On the CPU most operators besides matrix products stay in 16 bits;
on a GPU softmax, norms, powers, sums and losses are computed in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.library import fallthrough_kernel
from torch.utils._pytree import tree_iter, tree_map_only

from memtune_runner.tracing.adaptations import replaced
from memtune_runner.tracing.kernels import registered

_KEY = "AutocastCPU"
_BELOW_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

# AT_FORALL_LOWER_PRECISION_FP: inputs are cast to 16 bits.
NARROW = (
    "_convolution.deprecated",
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
)

# AT_FORALL_FP32: inputs are cast to fp32.
WIDE = (
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
)

# AT_FORALL_FP32_SET_OPT_DTYPE: the output is fp32, unless a dtype is given.
WIDE_RESULT = (
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
)

# AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE: the same, through another overload.
WIDE_RESULT_BY = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

# AT_FORALL_PROMOTE: inputs are cast to the widest among them.
WIDEST = (
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
)

# Operators that the CPU casts and a GPU does not (autocast_mode.cpp, TORCH_LIBRARY_IMPL of AutocastCPU). Those that a
# GPU cannot compute in 16 bits, such as decompositions and transforms, stay as the CPU casts them.
UNCAST = (
    "adaptive_avg_pool3d",
    "adaptive_max_pool3d",
    "avg_pool3d",
    "max_pool3d",
    "max_unpool2d",
    "max_unpool3d",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "reflection_pad1d",
    "reflection_pad2d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "cat",
    "stack",
    "index_copy",
    "trace",
    "cross_entropy_loss",
    "multilabel_margin_loss_forward",
    "grid_sampler_2d",
    "grid_sampler_3d",
)


@contextmanager
def gpu_casts() -> Iterator[None]:
    """Let autocast cast as on a GPU."""
    copies = _Copies()
    kernels: dict[str, Callable[..., Any]] = {}
    # The CPU casts most products as a GPU does, and caches its copies of weights.
    for name in (each for each in NARROW if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{each}", _KEY)):
        kernels[name] = partial(_narrow, name, copies)
    kernels |= {name: partial(_wide, name) for name in WIDE}
    kernels |= {name: partial(_wide_result, name, name) for name in WIDE_RESULT}
    kernels |= {name: partial(_wide_result, name, by) for name, by in WIDE_RESULT_BY.items()}
    kernels |= {name: partial(_widest, name) for name in WIDEST}
    kernels |= dict.fromkeys(UNCAST, fallthrough_kernel)
    known = {name: kernel for name, kernel in kernels.items() if torch._C._dispatch_has_kernel(f"aten::{name}")}
    with registered(_KEY, known), replaced(torch, "clear_autocast_cache", copies.clearing(torch.clear_autocast_cache)):
        yield


class _Copies:
    """Autocast's cache of weights in 16 bits, kept until autocast ends."""

    def __init__(self) -> None:
        self._made: dict[torch.Tensor, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor in 16 bits."""
        narrow = torch.get_autocast_dtype("cpu")
        if not (tensor.is_leaf and tensor.requires_grad and tensor.dtype is torch.float32):
            return _cast(tensor, narrow)
        if tensor not in self._made:
            self._made[tensor] = _cast(tensor, narrow)
        return self._made[tensor]

    def clearing(self, clear: Callable[[], None]) -> Callable[[], None]:
        """Clear these copies together with autocast's own."""

        def both() -> None:
            self._made.clear()
            clear()

        return both


def _narrow(name: str, copies: _Copies, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = tree_map_only(torch.Tensor, copies.of, (args, kwargs))
    return _computed(name, *args, **kwargs)


def _wide(name: str, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = tree_map_only(torch.Tensor, partial(_cast, dtype=torch.float32), (args, kwargs))
    return _computed(name, *args, **kwargs)


def _wide_result(name: str, by: str, first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    names = [each.name for each in _operator(name)._schema.arguments[1:]]
    kwargs |= dict(zip(names, args, strict=False))
    if kwargs.get("dtype") is None and (_is_cast(first) or by != name):
        kwargs["dtype"] = torch.float32 if _is_cast(first) else first.dtype
    return _computed(by, first, **kwargs)


def _widest(name: str, *args: Any, **kwargs: Any) -> Any:
    dtypes = {each.dtype for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor) and _is_cast(each)}
    widest = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cpu")
    args, kwargs = tree_map_only(torch.Tensor, partial(_cast, dtype=widest), (args, kwargs))
    return _computed(name, *args, **kwargs)


def _is_cast(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if _is_cast(tensor) else tensor


def _computed(name: str, *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_BELOW_AUTOCAST):
        return _operator(name)(*args, **kwargs)


def _operator(name: str) -> Any:
    operator, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, operator), overload or "default")
