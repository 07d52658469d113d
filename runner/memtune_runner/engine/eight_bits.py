"""Lets a distributed checkpoint of torchao's 8-bit states be cut anywhere.

They are blocks of values with a scale each, and torchao cuts only between two blocks. Shards for another number of
ranks may begin in the midst of one; what is cut there is read as plain numbers, and written back into the whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem
from torch.overrides import TorchFunctionMode


class CutAnywhere(TorchFunctionMode):
    """While it is entered, a cut in the midst of a block gives plain numbers instead of torchao's ValueError."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Do as torch does; a state that torchao does not cut becomes plain numbers first."""
        options = options or {}
        # The reader cuts what it has read before the planner sees it, so that the planner alone is not enough.
        if function is not torch.Tensor.narrow or not _has_blocks(arguments[0]):
            return function(*arguments, **options)
        try:
            return function(*arguments, **options)
        except ValueError:
            return function(arguments[0].dequantize(), *arguments[1:], **options)


class Planner(DefaultLoadPlanner):
    """torch's own, which completes states of 8 bits from the plain pieces that were read for them."""

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Take what was read; a piece of a block is a copy, not a view."""
        state: Any = self.lookup_tensor(read_item.dest_index)
        if _has_blocks(state) and not _has_blocks(tensor):
            whole = state.dequantize()
            self.transform_tensor(read_item, whole).copy_(tensor)
            state.copy_(whole)


def _has_blocks(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "block_size")
