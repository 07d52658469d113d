"""Makes libraries behave on tensors without data as they do on real ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional, init

# The functions behind those of torch.cuda.nvtx.
_NVTX = ("markA", "rangePushA", "rangePop", "rangeStartA", "rangeEnd", "deviceRangeStart", "deviceRangeEnd")
_NO_PACKING = "no row holds several sequences, which would need a mask in attention"


@contextmanager
def usual_paths(assumed: set[str]) -> Iterator[None]:
    """Answer data-dependent questions of libraries as most batches would; ``assumed`` collects the answers.

    transformers searches the positions for packed sequences, which need a mask. Without data it always creates the
    mask; training batches seldom have packed rows, and then attention gets none.
    """

    def no_packing(*_positions: Any, **_options: Any) -> None:
        assumed.add(_NO_PACKING)

    masks = sys.modules.get("transformers.masking_utils")
    with (
        replaced(masks, "find_packed_sequence_indices", no_packing),
        replaced(functional, "grouped_mm", _grouped_products),
        _unmarked(),
    ):
        yield


@contextmanager
def usual_values() -> Iterator[None]:
    """Skip what torch does with the values of weights while a model is built.

    It redraws truncated normals until all values are within bounds. It also swaps fake weights for converted ones,
    which it refuses if anything holds a weak reference to them.
    """
    with (
        replaced(init, "_no_grad_trunc_normal_", _drawn),
        replaced(torch.utils, "swap_tensors", _converted),
        _unmarked(),
    ):
        yield


def _unmarked() -> AbstractContextManager[None]:
    """Ignore profiler ranges, which a CPU build of torch rejects."""
    return replaced(torch.cuda.nvtx, "_nvtx", SimpleNamespace(**dict.fromkeys(_NVTX, lambda *_: 0)))


def _converted(weight: torch.Tensor, converted: torch.Tensor) -> None:
    weight.data = converted.data


def _grouped_products(rows: torch.Tensor, weights: torch.Tensor, **options: Any) -> Any:
    """Multiply the rows of all experts at once: the result has as many rows, however they are distributed.

    torch's own operator supports fake tensors only in 16 bits.
    """
    if rows.dtype is torch.bfloat16:
        return torch._grouped_mm(rows, weights, **options)
    return _GroupedProducts.apply(rows, weights)  # type: ignore[no-untyped-call]  # torch leaves it untyped


class _GroupedProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weights)
        return rows.new_empty(rows.shape[0], weights.shape[-1])

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        rows, weights = ctx.saved_tensors
        return torch.empty_like(rows), torch.empty_like(weights)


def _drawn(tensor: torch.Tensor, *_bounds: Any, **_generator: Any) -> torch.Tensor:
    return tensor


@contextmanager
def replaced(module: Any, name: str, stand_in: object) -> Iterator[None]:
    """Replace a function or flag of a module for a while, if it exists."""
    with ExitStack() as stack:
        replaced_one = getattr(module, name, None)
        if replaced_one is not None:
            setattr(module, name, stand_in)
            stack.callback(setattr, module, name, replaced_one)
        yield
