"""Prepares each loader in a call of its own, and leaves its training loop after 6 batches, before it evaluates."""

from __future__ import annotations

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
training = accelerator.prepare(DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=4, shuffle=True))
evaluation = accelerator.prepare(DataLoader(TensorDataset(torch.ones(48, 4)), batch_size=4))

for number, (batch,) in enumerate(training):
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
    if number == 5:
        break
model.eval()
with torch.no_grad():
    batches = sum(model(batch).numel() == 4 for (batch,) in evaluation)
print("evaluated", batches, "batches of", len(evaluation))
