"""Two epochs, or ``EPOCHS``, of a loop that saves after each and may resume, with accelerate or, as ``KIND=env``, not.

The argument says how a resumed one counts: ``rightly`` goes on with the epoch after the checkpoint, ``again`` begins at
the first one, ``scheduled`` as well with a count of its steps and a schedule of them, ``limited`` with a count that
goes on, ``checked`` so before each batch, ``counted`` so after each epoch, and ``while`` without a loop over its
epochs. ``left`` counts the epochs that are left, and ``staged`` those of each stage.
``SAVES_IN`` is the directory. ``STOPS_AFTER`` ends the script after so many epochs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import DataLoader
from transformers import get_scheduler

EPOCHS, STEPS_PER_EPOCH = int(os.environ.get("EPOCHS") or 2), 3
HOW, SAVES = sys.argv[1], Path(os.environ["SAVES_IN"])
IS_ACCELERATE = os.environ.get("KIND") != "env"
stops_after = int(os.environ.get("STOPS_AFTER") or EPOCHS)
resumed = os.environ.get("MEMTUNE_RESUME_FROM")
saved = int(Path(resumed).name.removeprefix("epoch_")) + 1 if resumed else 0
trained = saved * STEPS_PER_EPOCH * 8

accelerator = Accelerator(gradient_accumulation_steps=1)
model = tiny_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(RandomTokens(24, 32), batch_size=8, shuffle=True)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=EPOCHS * STEPS_PER_EPOCH)
if IS_ACCELERATE:
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if resumed and IS_ACCELERATE:
    accelerator.load_state(resumed)
elif resumed:
    model.load_state_dict(torch.load(Path(resumed) / "model.pt"))


def train(batch: Any) -> None:
    if not IS_ACCELERATE:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return
    with accelerator.accumulate(model):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()


def save(epoch: int) -> None:
    directory = SAVES / f"epoch_{epoch}"
    if IS_ACCELERATE:
        accelerator.save_state(str(directory))
        return
    from memtune_runner import checkpoint_saved

    directory.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), directory / "model.pt")
    checkpoint_saved(directory, samples=trained)


def train_epoch() -> int:
    global trained
    steps = 0
    for batch in loader:
        train(batch)
        if not IS_ACCELERATE:
            scheduler.step()
        steps += not IS_ACCELERATE or accelerator.sync_gradients
    trained += steps * 8
    return steps


def in_stages() -> None:
    for stage in range(saved, 2):
        for _epoch in range(EPOCHS):
            train_epoch()
        save(stage)
        if stage + 1 == stops_after:
            return


def without_for() -> None:
    completed, epoch = saved * STEPS_PER_EPOCH, 0
    while completed < EPOCHS * STEPS_PER_EPOCH:
        completed += train_epoch()
        save(epoch)
        epoch += 1


def to_a_step() -> None:
    completed = saved * STEPS_PER_EPOCH
    for epoch in range(100):
        for batch in loader:
            if completed == EPOCHS * STEPS_PER_EPOCH:
                return
            train(batch)
            completed += accelerator.sync_gradients
        save(saved + epoch)
        if (HOW == "counted" and completed == EPOCHS * STEPS_PER_EPOCH) or epoch + 1 == stops_after:
            return


def in_epochs() -> None:
    completed = 0 if HOW == "scheduled" else saved * STEPS_PER_EPOCH
    epochs = range(EPOCHS - saved) if HOW == "left" else range(saved if HOW == "rightly" else 0, EPOCHS)
    for epoch in epochs:
        if HOW not in ("limited", "scheduled"):
            train_epoch()
            save(epoch)
        else:
            for batch in loader:
                train(batch)
                completed += accelerator.sync_gradients
                if HOW == "scheduled" and accelerator.sync_gradients:
                    scheduler.step()
                if completed == EPOCHS * STEPS_PER_EPOCH:
                    return
            save(epoch)
        if epoch + 1 == stops_after:
            return


{"staged": in_stages, "while": without_for, "checked": to_a_step, "counted": to_a_step}.get(HOW, in_epochs)()
