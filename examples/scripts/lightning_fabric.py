"""A training loop with Lightning's Fabric. Integration: lightning; the loop itself accumulates and resumes."""

from __future__ import annotations

import os
from pathlib import Path

import lightning
import torch
from tiny_model import RandomTokens, tiny_llama
from torch.utils.data import DataLoader

saves = Path(os.environ.get("MEMTUNE_CHECKPOINT_PATH", "."))
accumulation = int(os.environ.get("MEMTUNE_ACCUMULATION", "1"))
fabric = lightning.Fabric()
fabric.launch()
model = fabric.setup(tiny_llama())
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
loader = fabric.setup_dataloaders(DataLoader(RandomTokens(64, 32), batch_size=16))

state = {"model": model, "optimizer": optimizer}
trained = 0
if checkpoint := os.environ.get("MEMTUNE_RESUME_FROM"):  # absent or empty for a fresh start
    fabric.load(checkpoint, state)
    trained = int(os.environ["MEMTUNE_RESUME_SAMPLES"]) // (loader.batch_sampler.batch_size * fabric.world_size)

for number, batch in enumerate(loader):
    if number < trained:
        continue
    is_accumulating = (number + 1) % accumulation != 0
    with fabric.no_backward_sync(model, enabled=is_accumulating):
        loss = model(**batch).loss
        fabric.backward(loss / accumulation)
    if not is_accumulating:
        optimizer.step()
        optimizer.zero_grad()
        fabric.print(f"step {(number + 1) // accumulation} loss {loss.item():.5f}")
        fabric.save(saves / "fabric.ckpt", state)
