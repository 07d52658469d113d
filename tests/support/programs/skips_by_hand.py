"""Trains 8 steps on 64 rows and saves after 4; a relaunch skips trained batches by its own count.

An argument is how many batches too many it skips. It prints which rows it trains on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from torch.utils.data import DataLoader, TensorDataset

OWN_ACCUMULATION = 4

accelerator = Accelerator(gradient_accumulation_steps=OWN_ACCUMULATION)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.arange(64)), batch_size=2, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

checkpoint, done = os.environ.get("MEMTUNE_RESUME_FROM"), 0
if checkpoint:
    accelerator.load_state(checkpoint)
    done = int(checkpoint.rpartition("-")[2])
skipped = done * OWN_ACCUMULATION + int(*sys.argv[1:])

for number, (batch, rows) in enumerate(loader):
    if number < skipped:
        continue
    print(*(f"row {row}" for row in rows.tolist()), flush=True)
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
    done += accelerator.sync_gradients
    if accelerator.sync_gradients and done == 4:
        accelerator.save_state(str(Path(os.environ["MEMTUNE_CHECKPOINT_PATH"]) / "step-4"))
        break
