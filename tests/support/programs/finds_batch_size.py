"""Trains within accelerate's `find_executable_batch_size`, and runs out of memory in its second step."""

from __future__ import annotations

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from accelerate.utils import find_executable_batch_size  # type: ignore[import-untyped]  # as above
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()


@find_executable_batch_size(starting_batch_size=8)  # type: ignore[untyped-decorator]  # as above
def train(batch_size: int) -> None:
    print(f"tries batches of {batch_size}", flush=True)
    accelerator.free_memory()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, (batch,) in enumerate(loader):
        if number == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()


train()
