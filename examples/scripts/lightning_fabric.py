"""A training loop with Lightning's Fabric. Integration: lightning; the loop itself accumulates and resumes."""

from __future__ import annotations

import math
import os
from pathlib import Path

import lightning
import torch
from tiny_model import RandomTokens, tiny_llama
from torch.utils.data import DataLoader

EPOCHS = 2

saves = Path(os.environ.get("MEMTUNE_CHECKPOINT_PATH", "."))
accumulation = int(os.environ.get("MEMTUNE_ACCUMULATION", "1"))
fabric = lightning.Fabric()
fabric.launch()
model = fabric.setup(tiny_llama())
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
loader = fabric.setup_dataloaders(DataLoader(RandomTokens(64, 32), batch_size=16))

state = {"model": model, "optimizer": optimizer}
step = 0
if checkpoint := os.environ.get("MEMTUNE_RESUME_FROM"):  # absent or empty for a fresh start
    fabric.load(checkpoint, state)
    step = int(os.environ["MEMTUNE_RESUME_STEP"])

# Every plan makes as many steps of an epoch, the last of which may be short: so steps tell the place, not samples.
first_epoch, steps_behind = divmod(step, math.ceil(len(loader) / accumulation))
for epoch in range(first_epoch, EPOCHS):
    for number, batch in enumerate(loader, start=1):
        if epoch == first_epoch and number <= steps_behind * accumulation:
            continue
        is_accumulating = number % accumulation != 0 and number < len(loader)
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = model(**batch).loss
            fabric.backward(loss / accumulation)
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            fabric.print(f"step {step} loss {loss.item():.5f}")
            fabric.save(saves / "fabric.ckpt", state)
