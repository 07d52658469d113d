"""Two trainings with accelerate in one process, each with an Accelerator of its own; both save and resume.

``SAVES_IN`` is the directory. Each prints its losses; the second one's steps count from 101. With ``PREPARES_BOTH`` all
is prepared before the first step, with ``IN_TURN`` the two also train in turn, an epoch each. With ``LOADS`` each loads
this checkpoint, else the newest of its own. With ``LOADS_AT_END`` the first loads that save of its own after its last
step, as a script does that takes its best weights.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import DataLoader

LOADS, LOADS_AT_END = os.environ.get("LOADS"), os.environ.get("LOADS_AT_END")
IN_TURN = bool(os.environ.get("IN_TURN"))


def prepare(rows: int) -> tuple[Any, ...]:
    accelerator = Accelerator(gradient_accumulation_steps=1)
    model = tiny_llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(RandomTokens(rows, 32), batch_size=8)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def train(name: str, first_step: int, prepared: tuple[Any, ...]) -> Iterator[None]:
    """Train, and stop after each epoch."""
    accelerator, model, optimizer, loader = prepared
    saves, step = Path(os.environ["SAVES_IN"]) / name, 0
    # A script that knows its own saves, as the examples of accelerate do.
    for saved in saves.glob("step_*"):
        if os.environ.get("MEMTUNE_RESUME_FROM"):
            step = max(step, int(saved.name.removeprefix("step_")))
    batches = loader
    if step:
        accelerator.load_state(LOADS or str(saves / f"step_{step}"))
        if step == len(loader) and not IN_TURN:
            return
        batches = accelerator.skip_first_batches(loader, step % len(loader))
    for _ in range(2 if IN_TURN else 1):
        for batch in batches:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                print(f"step {first_step + step} loss {loss.item():.5f}", flush=True)
                accelerator.save_state(str(saves / f"step_{step}"))
                tell_norm(f"step_{step}", model)
            if os.environ.get("FAILS_AT") == f"{name}-{step}":
                raise RuntimeError(f"{name} fails at step {step}")
        batches = loader
        yield
    if LOADS_AT_END and name == "first":
        accelerator.load_state(str(saves / LOADS_AT_END))
        tell_norm(LOADS_AT_END, model)


def tell_norm(name: str, model: Any) -> None:
    print(f"norm of {name}: {sum(float(each.detach().norm()) for each in model.parameters()):.6f}", flush=True)


if os.environ.get("PREPARES_BOTH"):
    both = train("first", 0, prepare(24)), train("second", 100, prepare(40))
    for _ in zip(*both, strict=True) if IN_TURN else (each for training in both for each in training):
        pass
else:
    list(train("first", 0, prepare(24)))
    list(train("second", 100, prepare(40)))
