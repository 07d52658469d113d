"""Fits noisy digits in a loop of Lightning's Fabric, which accumulates, saves and goes on by its own arguments.

python digits_fabric.py --output DIRECTORY --accumulate 2 --resume CHECKPOINT --samples-done 24
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--resume", default="", help="a checkpoint to resume from")
parser.add_argument("--samples-done", type=int, default=0, help="those that the checkpoint has trained on")
options = parser.parse_args()

seed_everything(7)
fabric = Fabric()
fabric.launch()
classes = torch.randint(10, (48,))
pixels = classes[:, None, None] / 10 + 0.3 * torch.randn(48, 64, 32)
layer = nn.TransformerEncoderLayer(32, 2, 1280, 0.0, functional.silu, batch_first=True, norm_first=True)
encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
model = fabric.setup(nn.Sequential(encoder, nn.Flatten(), nn.Linear(64 * 32, 10)))
optimizer: Any = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(pixels, classes), batch_size=options.batch_size))
state = {"model": model, "optimizer": optimizer}
if options.resume:
    fabric.load(options.resume, state)

steps_of_epoch = -(-len(loader) // options.accumulate)
done = options.samples_done * len(loader) // len(pixels)  # batches, over all epochs
for epoch in range(options.epochs):
    total = 0.0
    for number, (batch, labels) in enumerate(loader, start=1):
        if epoch * len(loader) + number <= done:
            continue
        is_accumulating = number % options.accumulate != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = functional.cross_entropy(model(batch), labels)
            fabric.backward(loss / options.accumulate)
        total += loss.item() / options.accumulate
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()
            step = epoch * steps_of_epoch + number // options.accumulate
            fabric.print(f"step {step} loss {total:.5f}")
            fabric.save(options.output / f"step-{step}.ckpt", state)
            total = 0.0
