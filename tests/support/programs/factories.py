"""Model factories, good and bad, as users write them."""

from __future__ import annotations

import os
import time
from typing import Any, cast

import torch
from torch import nn

WIDTH = 32


class Layers(nn.Module):
    """Blocks of one linear layer each."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(blocks))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return hidden.square().mean()


def plain(micro_batch: int, sequence_length: int) -> tuple[nn.Module, torch.Tensor]:
    """A model and an example batch; the model gives its own loss."""
    return Layers(), torch.zeros(micro_batch, sequence_length, WIDTH)


class Profiled(Layers):
    """Marks its passes for NVIDIA's profiler."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        torch.cuda.nvtx.mark("forward")
        with torch.cuda.nvtx.range("layers"):
            return super().forward(hidden)


def profiled(micro_batch: int, sequence_length: int) -> tuple[nn.Module, torch.Tensor]:
    """The same as ``plain``, with ranges for a profiler where it is built and where it computes."""
    with torch.cuda.nvtx.range("building"):
        return Profiled(), torch.zeros(micro_batch, sequence_length, WIDTH)


def sized(micro_batch: int, sequence_length: int, blocks: int) -> tuple[nn.Module, torch.Tensor]:
    """A model as large as it is told."""
    return Layers(blocks), torch.zeros(micro_batch, sequence_length, WIDTH)


def with_loss() -> tuple[nn.Module, Any, Any]:
    """A model, a function that makes batches, and a loss."""

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return cast(torch.Tensor, model(batch["hidden"])).square()

    return Layers(), lambda rows: {"hidden": torch.zeros(rows, 4, WIDTH)}, loss


def raising() -> nn.Module:
    raise RuntimeError("no such checkpoint")


def checkpointing_itself(enabled: bool = True) -> nn.Module:
    """A model of transformers that the factory lets checkpoint its blocks."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", **sizes, num_hidden_layers=2, use_cache=False)
    kind: Any = AutoModelForCausalLM
    model = kind.from_config(config)
    if enabled:
        model.activation_checkpointing_enable()
    return cast(nn.Module, model)


def printing() -> tuple[nn.Module, torch.Tensor]:
    """What it prints is no text."""
    os.write(2, b"\xff\xfe\n")
    return Layers(), torch.zeros(2, WIDTH)


def needing_a_gpu() -> nn.Module:
    return Layers().cuda()


def not_a_model() -> str:
    return "llama"


def alone() -> nn.Module:
    """Nobody knows what goes in."""
    return Layers()


def without_loss() -> tuple[nn.Module, torch.Tensor]:
    return nn.Linear(WIDTH, WIDTH), torch.zeros(2, WIDTH)


def at_odds() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Which of the two is the micro-batch?"""
    return Layers(), (torch.zeros(2, WIDTH), torch.zeros(5, WIDTH))


def loss_of_no_number() -> tuple[nn.Module, torch.Tensor, Any]:
    return Layers(), torch.zeros(2, WIDTH), lambda _model, batch: batch.sum(-1)


def no_loss() -> tuple[nn.Module, torch.Tensor, int]:
    return Layers(), torch.zeros(2, WIDTH), 5


def frozen() -> tuple[nn.Module, torch.Tensor]:
    return Layers().requires_grad_(False), torch.zeros(2, WIDTH)


def without_tensors() -> tuple[nn.Module, str]:
    return Layers(), "a batch"


def empty() -> tuple[()]:
    return ()


class Choosing(Layers):
    """What it does next depends on what it has computed."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        large = hidden[hidden.sum(-1) > 0]
        return super().forward(large)


def data_dependent() -> tuple[nn.Module, torch.Tensor]:
    return Choosing(), torch.zeros(2, WIDTH)


class Sparse(Layers):
    """The gradient of its embedding has the rows that were looked up, and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, WIDTH, sparse=True)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return super().forward(self.words(words))


def sparse() -> tuple[nn.Module, torch.Tensor]:
    return Sparse(), torch.zeros(2, 4, dtype=torch.long)


class RowByRow(Layers):
    """Its code depends on the number of rows."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.stack([super(RowByRow, self).forward(row) for row in hidden]).sum()


def row_by_row() -> tuple[nn.Module, torch.Tensor]:
    return RowByRow(), torch.zeros(2, WIDTH)


@torch.library.custom_op("memtune_test::twice", mutates_args=())
def twice(hidden: torch.Tensor) -> torch.Tensor:
    """An operator that says nothing about its result."""
    return hidden * 2


class Custom(Layers):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(cast(torch.Tensor, twice(hidden)))


def custom_operator() -> tuple[nn.Module, torch.Tensor]:
    return Custom(), torch.zeros(2, WIDTH)


class Hoarding(Layers):
    """Allocates behind torch's back."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.held = bytearray(1 << 40)
        return super().forward(hidden)


def hoarding() -> tuple[nn.Module, torch.Tensor]:
    return Hoarding(), torch.zeros(2, WIDTH)


def endless() -> nn.Module:
    while True:
        time.sleep(0.01)


def greedy() -> nn.Module:
    """Has real memory, however nothing else has."""
    held = bytearray(1 << 40)
    raise RuntimeError(f"{len(held)} bytes were given")


class Moving(Layers):
    """Has its device written into its code."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden.cuda())


def moving() -> tuple[nn.Module, torch.Tensor]:
    return Moving(), torch.zeros(2, WIDTH)
