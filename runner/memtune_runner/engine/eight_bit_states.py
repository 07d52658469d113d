"""Reshards distributed checkpoints of torchao's 8-bit optimizer states at any boundary.

The states are blocks of values with one scale each, and torchao splits only between blocks. Shards for another number
of ranks may start within a block; such pieces are read as plain numbers and written back into the whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem
from torch.overrides import TorchFunctionMode


class CutAnywhere(TorchFunctionMode):
    """While active, slicing within a block returns plain numbers instead of raising torchao's ValueError."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Call torch's function; dequantize a state first if torchao cannot slice it."""
        options = options or {}
        # The reader slices before the planner sees the result, so the planner alone is not enough.
        if function is not torch.Tensor.narrow or not _has_blocks(arguments[0]):
            return function(*arguments, **options)
        try:
            return function(*arguments, **options)
        except ValueError:
            return function(arguments[0].dequantize(), *arguments[1:], **options)


class Planner(DefaultLoadPlanner):
    """torch's planner, extended to write plain pieces back into 8-bit states."""

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Store what was read; a piece of a block is a copy, not a view."""
        state: Any = self.lookup_tensor(read_item.dest_index)
        if _has_blocks(state) and not _has_blocks(tensor):
            whole = state.dequantize()
            self.transform_tensor(read_item, whole).copy_(tensor)
            state.copy_(whole)


def _has_blocks(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "block_size")
