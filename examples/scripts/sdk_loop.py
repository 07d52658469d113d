"""A loop over MemTune's engine. Integration: sdk; DeepSpeed, FSDP2 or DDP, as the plan says, behind the same lines."""

from __future__ import annotations

import os
from itertools import islice

from tiny_model import RandomTokens, tiny_llama
from torch.utils.data import DataLoader

from memtune_runner import ResumableSampler, initialize

STEPS, SAVE_EVERY = 12, 4

engine = initialize(tiny_llama(), lr=1e-3)
if checkpoint := os.environ.get("MEMTUNE_RESUME_FROM"):
    engine.load(checkpoint)
data = RandomTokens(1024, 32)
loader = DataLoader(data, batch_sampler=ResumableSampler(len(data), samples_done=engine.samples))

for batch in islice(loader, STEPS - engine.steps):
    for micro in engine.micro_batches(batch):
        engine.backward(engine(micro))
    loss = engine.step().loss
    if engine.steps % SAVE_EVERY == 0:
        engine.save()
    if os.environ["RANK"] == "0":
        print(f"step {engine.steps} loss {loss.item():.3f}")
