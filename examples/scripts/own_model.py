"""A model that no config.json describes, its factory, and its loop. Integration: sdk; traced before it is trained."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from memtune_runner import initialize

VOCABULARY, STEPS, SAVE_EVERY = 256, 6, 3


class Output(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


class Block(nn.Module):
    """Mixes each token with those before it by a convolution, then by itself."""

    def __init__(self, width: int, kernel: int = 4) -> None:
        super().__init__()
        self.kernel = kernel
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, width, kernel, groups=width)
        self.gate = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        before = functional.pad(self.norm(hidden).transpose(1, 2), (self.kernel - 1, 0))
        left, right = self.gate(self.mix(before).transpose(1, 2)).chunk(2, dim=-1)
        return hidden + self.out(left * functional.silu(right))


class Mixer(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Output:
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(hidden)
        return Output(functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


Batch = dict[str, torch.Tensor]


def build(sequence_length: int, width: int = 64, blocks: int = 4) -> tuple[Mixer, Callable[[int], Batch]]:
    """What spec.model.factory names: the model, and a function that makes its batches."""

    def batch(rows: int) -> Batch:
        tokens = torch.zeros(rows, sequence_length, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens.clone()}

    return Mixer(width, blocks), batch


def main() -> None:
    """Train on random tokens that the model is to repeat."""
    torch.manual_seed(0)
    length = int(os.environ["MEMTUNE_SEQUENCE_LENGTH"])
    engine = initialize(build(length)[0], lr=1e-3)
    if checkpoint := os.environ.get("MEMTUNE_RESUME_FROM"):
        engine.load(checkpoint)
    rows = int(os.environ["MEMTUNE_GLOBAL_BATCH"]) // int(os.environ["WORLD_SIZE"])
    while engine.steps < STEPS:
        tokens = torch.randint(0, VOCABULARY, (rows, length))
        for micro in engine.micro_batches({"input_ids": tokens, "labels": tokens}):
            engine.backward(engine(micro))
        loss = engine.step().loss
        if engine.steps % SAVE_EVERY == 0:
            engine.save()
        if os.environ["RANK"] == "0":
            print(f"step {engine.steps} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
