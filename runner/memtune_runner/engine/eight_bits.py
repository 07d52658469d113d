"""Lets a distributed checkpoint of torchao's 8-bit states be cut anywhere.

They are blocks of values with a scale each, and torchao cuts only between two blocks. Shards for another number of
ranks may begin in the midst of one; what is cut there is read as plain numbers, and written back into the whole.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

_CUT = torch.ops.aten.slice.Tensor
_DONE = "_memtune_cut"


class Planner(DefaultLoadPlanner):
    """torch's own, which completes states of 8 bits from the plain pieces that were read for them."""

    def __init__(self) -> None:
        super().__init__()
        module = sys.modules.get("torchao.optim.subclass_8bit")
        if module is not None:
            _cut_anywhere(module.OptimState8bit)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Take what was read; a piece of a block is a copy, not a view."""
        state: Any = self.lookup_tensor(read_item.dest_index)
        if _has_blocks(state) and not _has_blocks(tensor):
            whole = state.dequantize()
            self.transform_tensor(read_item, whole).copy_(tensor)
            state.copy_(whole)


def _has_blocks(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "block_size")


def _cut_anywhere(state_class: Any) -> None:
    """Let a cut in the midst of a block give plain numbers instead of torchao's ValueError."""
    if hasattr(state_class, _DONE):
        return
    between_blocks = state_class._ATEN_OP_TABLE[state_class][_CUT]

    @state_class.implements(_CUT)  # type: ignore[untyped-decorator]  # torchao is no dependency of ours
    def cut(function: Any, types: Any, arguments: Any, options: Any) -> Any:
        try:
            return between_blocks(function, types, arguments, options)
        except ValueError:
            return function(arguments[0].dequantize(), *arguments[1:], **options)

    setattr(state_class, _DONE, True)
