"""A training loop with accelerate that saves and resumes. Integration: accelerate; the plan replaces batch and engine.

``accelerate_loop.py SAVES [CHECKPOINT]``: where it saves, and what it resumes from. A checkpoint is named after the
optimizer steps behind it, which tell the epoch and the batch at which to go on.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from tiny_model import RandomTokens, tiny_llama
from torch.utils.data import DataLoader

EPOCHS, SAVE_EVERY = 3, 3
ACCUMULATION = 2  # the script's own, in which it counts batches under any plan

saves = Path(sys.argv[1]) if len(sys.argv) > 1 else None
checkpoint = sys.argv[2] if len(sys.argv) > 2 else ""  # empty for a fresh start

accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)
model = tiny_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(RandomTokens(64, 32), batch_size=8, shuffle=True)
evaluation = DataLoader(RandomTokens(16, 32), batch_size=8)
model, optimizer, loader, evaluation = accelerator.prepare(model, optimizer, loader, evaluation)
steps_of_epoch = math.ceil(len(loader) / ACCUMULATION)

step = 0
if checkpoint:
    accelerator.load_state(checkpoint)
    step = int(Path(checkpoint).name.removeprefix("step_"))
first_epoch, steps_done = divmod(step, steps_of_epoch)

for epoch in range(first_epoch, EPOCHS):
    model.train()
    batches = loader
    if epoch == first_epoch and steps_done:
        batches = accelerator.skip_first_batches(loader, steps_done * ACCUMULATION)
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:  # an optimizer step has ended
            step += 1
            accelerator.print(f"step {step} of epoch {epoch + 1} loss {loss.item():.5f}")
            if saves is not None and step % SAVE_EVERY == 0:
                accelerator.save_state(str(saves / f"step_{step}"))
    model.eval()
    with torch.no_grad():
        losses = torch.stack([model(**batch).loss for batch in evaluation])
    accelerator.print(f"evaluated {losses.mean().item():.3f}")
