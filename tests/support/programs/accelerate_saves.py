"""A loop of accelerate that saves its state at every step, and may be killed in the middle of a save.

``SAVES_IN`` is where; ``KILLED_AT`` the step whose save it does not survive. It goes on from what it is told.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import DataLoader

samples = int(os.environ.get("MEMTUNE_RESUME_SAMPLES", "0"))
save, step = torch.save, samples // int(os.environ["MEMTUNE_GLOBAL_BATCH"])


def save_or_die(*args: Any, **kwargs: Any) -> None:
    if step == int(os.environ.get("KILLED_AT", "-1")):
        os.kill(os.getpid(), signal.SIGKILL)
    save(*args, **kwargs)


torch.save = save_or_die
accelerator = Accelerator()
model = tiny_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(RandomTokens(64, 32), batch_size=4))
if samples:
    accelerator.load_state(os.environ["MEMTUNE_RESUME_FROM"])
    loader = accelerator.skip_first_batches(loader, samples // loader.total_batch_size)
losses = []
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.detach())
    if accelerator.sync_gradients:
        step += 1
        lost = accelerator.reduce(torch.stack(losses).mean(), "mean")
        losses.clear()
        accelerator.print(f"step {step} loss {lost:.7f}")
        accelerator.save_state(str(Path(os.environ["SAVES_IN"]) / f"step-{step}"))
