"""A loop of accelerate over a training loader of the kind that its argument names, beside one to evaluate on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, default_collate
from transformers import DataCollatorWithFlattening

DATA = RandomTokens(64, 32)


class Streamed(IterableDataset[dict[str, torch.Tensor]]):
    """Samples one after the other, of which nobody knows how many come."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (DATA[number % 64] for number in range(128))


class StreamedBatches(IterableDataset[dict[str, torch.Tensor]]):
    """Whole batches: the script makes its own."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (default_collate([DATA[row] for row in range(4)]) for _ in range(16))


class Backwards(DataLoader[dict[str, torch.Tensor]]):
    """A loader with a way of its own."""


def _lists(rows: list[dict[str, torch.Tensor]]) -> list[dict[str, list[int]]]:
    return [{"input_ids": row["input_ids"].tolist()} for row in rows]


def loader_of(kind: str) -> DataLoader[Any]:
    match kind:
        case "streamed":
            return DataLoader(Streamed(), batch_size=16)
        case "streamed-by-a-worker":
            return DataLoader(Streamed(), batch_size=16, num_workers=1, drop_last=True)
        case "streamed-batches":
            return DataLoader(StreamedBatches(), batch_size=None)
        case "batch-sampler":
            return DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 16, drop_last=True))
        case "flattened":
            flattening: Any = DataCollatorWithFlattening
            return DataLoader(DATA, batch_size=16, shuffle=True, collate_fn=lambda rows: flattening()(_lists(rows)))
        case _:
            return Backwards(DATA, batch_size=16, shuffle=True)


accelerator = Accelerator()
model = tiny_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
evaluation = DataLoader(RandomTokens(16, 32), batch_size=8)
model, optimizer, evaluation, loader = accelerator.prepare(model, optimizer, evaluation, loader_of(sys.argv[1]))
if accelerator.prepare(loader) is not loader:
    raise SystemExit("what is prepared was prepared again")
model.train()
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
