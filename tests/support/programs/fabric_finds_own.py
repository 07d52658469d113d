"""A Fabric loop that resumes from the newest of its own files, as LitGPT does with `--resume auto`.

``SAVES_IN`` is where it saves after each of its four steps.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

saves = Path(os.environ["SAVES_IN"])
fabric = Fabric()
fabric.launch()
model = fabric.setup(torch.nn.Linear(4, 1))
optimizer: Any = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}
if found := max(saves.glob("step-*/state.pth"), default=None):
    fabric.load(found, state)
print(f"begins after step {state['step']}")
while state["step"] < 4:
    fabric.backward(model(torch.randn(2, 4)).sum())
    optimizer.step()
    optimizer.zero_grad()
    state["step"] += 1
    fabric.save(saves / f"step-{state['step']}" / "state.pth", state)
fabric.load(saves / "step-1" / "state.pth", state)
print(f"tests step {state['step']}")
