"""A loop of accelerate that saves its state at every step, and may be killed in the middle of a save.

``SAVES_IN`` is where; ``KILLED_AT`` the step whose save it does not survive.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "scripts"))

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import DataLoader

save, step = torch.save, 0


def save_or_die(*args: Any, **kwargs: Any) -> None:
    if step == int(os.environ["KILLED_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    save(*args, **kwargs)


torch.save = save_or_die
accelerator = Accelerator()
model = tiny_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(RandomTokens(64, 32), batch_size=4))
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        step += 1
        accelerator.save_state(str(Path(os.environ["SAVES_IN"]) / f"step-{step}"))
