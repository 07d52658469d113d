"""Block-wise states are sliced anywhere using only ``narrow``, ``dequantize`` and ``copy_``.

Its other parts have other names in each version of torchao; resume/test_eight_bit_optimizers.py has one of them as is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from memtune_runner.engine.eight_bit_states import CutAnywhere, Planner


class Blocks(torch.Tensor):
    """Like torchao's state: sliced only between blocks."""

    block_size = 4

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is torch.Tensor.narrow and any(each % cls.block_size for each in arguments[2:]):
            raise ValueError("Make sure start and end align with block boundary.")
        return super().__torch_function__(function, types, arguments, options)  # type: ignore[no-untyped-call]

    def dequantize(self) -> torch.Tensor:
        return self.detach().clone().as_subclass(torch.Tensor)


def state() -> Blocks:
    return torch.arange(8.0).as_subclass(Blocks)


def test_a_shard_cut_between_blocks_stays_quantized() -> None:
    with CutAnywhere():
        assert isinstance(state().narrow(0, 4, 4), Blocks)


def test_a_shard_cut_within_a_block_becomes_plain_numbers() -> None:
    with CutAnywhere():
        cut = state().narrow(0, 3, 2)
    assert not isinstance(cut, Blocks)
    assert cut.tolist() == [3.0, 4.0]


def test_values_loaded_into_a_shard_reach_the_whole_tensor() -> None:
    whole, planner = state(), Planner()
    planner.set_up_planner({"state": whole})
    index, start, length = MetadataIndex("state"), torch.Size([3]), torch.Size([2])
    item = ReadItem(LoadItemType.TENSOR, index, start, index, start, length)
    with CutAnywhere():
        piece = planner.resolve_tensor(item).detach().fill_(9.0)
        planner.commit_tensor(item, piece)
    assert whole.tolist() == [0.0, 1.0, 2.0, 9.0, 9.0, 5.0, 6.0, 7.0]
