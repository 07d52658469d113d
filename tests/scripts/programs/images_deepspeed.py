"""Classifies small random images with DeepSpeed, which makes the engine and the loader of its configuration.

    deepspeed images_deepspeed.py --epochs 2 --output DIRECTORY --deepspeed --deepspeed_config FILE

What MemTune asks of such a script is where ``--resume`` is read and below the call of ``save_checkpoint``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import deepspeed  # type: ignore[import-untyped]  # it has no types
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from memtune_runner import checkpoint_saved


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 768, 3, padding=1)
        self.second = nn.Conv2d(768, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 8 * 8, 64)
        self.classes = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = functional.max_pool2d(functional.relu(self.first(images)), 2)
        found = functional.max_pool2d(functional.relu(self.second(found)), 2)
        classes: torch.Tensor = self.classes(functional.relu(self.hidden(found.flatten(1))))
        return classes


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--resume", default="", help="the directory of a checkpoint to resume from")
options = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed()
torch.manual_seed(0)
images = TensorDataset(torch.randn(48, 3, 32, 32), torch.randint(10, (48,)))
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
engine, _, loader, _ = deepspeed.initialize(args=options, model=net, optimizer=optimizer, training_data=images)
first = 0
if options.resume:
    _, kept = engine.load_checkpoint(options.resume)
    first = kept["epochs"]
dtype = next(engine.parameters()).dtype
for epoch in range(first, options.epochs):
    total = 0.0
    for batch, labels in loader:
        loss = functional.cross_entropy(engine(batch.to(engine.device, dtype)).float(), labels.to(engine.device))
        engine.backward(loss)
        total += loss.item() / engine.gradient_accumulation_steps()
        is_step = engine.is_gradient_accumulation_boundary()
        engine.step()
        if is_step:
            print(f"step {engine.global_steps} loss {total:.6f}", flush=True)
            total = 0.0
    directory = options.output / f"{os.environ['MEMTUNE_RUN']}-epoch-{epoch}"
    engine.save_checkpoint(str(directory), client_state={"epochs": epoch + 1})
    checkpoint_saved(directory, samples=(epoch + 1) * len(images))
