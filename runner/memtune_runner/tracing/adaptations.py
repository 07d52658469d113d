"""Libraries that do other things on tensors without data than on those with data, told to do the usual."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional, init

# What torch.cuda.nvtx calls for each of its functions.
_NVTX = ("markA", "rangePushA", "rangePop", "rangeStartA", "rangeEnd", "deviceRangeStart", "deviceRangeEnd")
_NO_PACKING = "no row holds several sequences, which would need a mask in attention"


@contextmanager
def usual_paths(assumed: set[str]) -> Iterator[None]:
    """What libraries ask of data that a trace does not have is answered as most batches would; ``assumed`` tells how.

    transformers looks into the positions for rows that hold several sequences, which need a mask. Without data it makes
    the mask in any case; a batch in training seldom has such rows, and then attention has none.
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
    """What torch does with values of weights while a model is built is done without them.

    It draws truncated normals until all of them lie between the bounds. Fake weights that it converts, it exchanges
    for the converted ones, which it refuses if anything has a weak reference to one of them.
    """
    with (
        replaced(init, "_no_grad_trunc_normal_", _drawn),
        replaced(torch.utils, "swap_tensors", _converted),
        _unmarked(),
    ):
        yield


def _unmarked() -> AbstractContextManager[None]:
    """Ranges for a profiler mark nothing: a CPU build of torch refuses them."""
    return replaced(torch.cuda.nvtx, "_nvtx", SimpleNamespace(**dict.fromkeys(_NVTX, lambda *_: 0)))


def _converted(weight: torch.Tensor, converted: torch.Tensor) -> None:
    weight.data = converted.data


def _grouped_products(rows: torch.Tensor, weights: torch.Tensor, **options: Any) -> Any:
    """The products of all experts at once: as large as the rows, whichever expert gets how many of them.

    torch's own says what it makes for 16 bits only.
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
    """A function or a flag of a module replaced, if there is such a one."""
    with ExitStack() as stack:
        replaced_one = getattr(module, name, None)
        if replaced_one is not None:
            setattr(module, name, stand_in)
            stack.callback(setattr, module, name, replaced_one)
        yield
