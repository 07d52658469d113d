"""Two trainings with accelerate in one process, each with an Accelerator of its own; both save and resume.

``SAVES_IN`` is the directory. Each prints its losses; the second one's steps count from 101.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import DataLoader


def train(name: str, first_step: int, rows: int) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=1)
    model = tiny_llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(RandomTokens(rows, 32), batch_size=8))
    saves, step = Path(os.environ["SAVES_IN"]) / name, 0
    # A script that knows its own saves, as the examples of accelerate do.
    for saved in saves.glob("step_*"):
        if os.environ.get("MEMTUNE_RESUME_FROM"):
            step = max(step, int(saved.name.removeprefix("step_")))
    if step:
        accelerator.load_state(str(saves / f"step_{step}"))
        if step == len(loader):
            return
        loader = accelerator.skip_first_batches(loader, step)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            print(f"step {first_step + step} loss {loss.item():.5f}", flush=True)
            accelerator.save_state(str(saves / f"step_{step}"))
        if os.environ.get("FAILS_AT") == f"{name}-{step}":
            raise RuntimeError(f"{name} fails at step {step}")


train("first", 0, 24)
train("second", 100, 40)
