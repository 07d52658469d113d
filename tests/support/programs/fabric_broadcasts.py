"""A loop with Fabric of which the first rank alone reads the checkpoint, and gives it to the others.

``SAVES_IN`` is where it saves after each of its three steps.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

fabric = Fabric()
fabric.launch()
model = fabric.setup(torch.nn.Linear(4, 1))
optimizer: Any = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
if directory := os.environ.get("MEMTUNE_RESUME_FROM"):
    read: Any = torch.load(Path(directory) / "checkpoint.ckpt") if fabric.is_global_zero else None
    model.load_state_dict(fabric.broadcast(read)["model"])
for step in range(3):
    fabric.backward(model(torch.randn(1, 4)).sum())
    optimizer.step()
    optimizer.zero_grad()
    fabric.save(Path(os.environ["SAVES_IN"]) / f"{step}.ckpt", {"model": model, "optimizer": optimizer})
