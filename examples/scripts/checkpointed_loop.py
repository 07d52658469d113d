"""A plain loop that saves and resumes by itself. Integration: env; it tells MemTune of each of its checkpoints."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import torch
from tiny_model import RandomTokens, tiny_llama
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from memtune_runner import ResumableSampler, checkpoint_saved

STEPS, SAVE_EVERY = 12, 4

micro_batch = int(os.environ["MEMTUNE_MICRO_BATCH"])
accumulation = int(os.environ["MEMTUNE_ACCUMULATION"])
global_batch = int(os.environ["MEMTUNE_GLOBAL_BATCH"])
samples = int(os.environ.get("MEMTUNE_RESUME_SAMPLES") or 0)

device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
model = DistributedDataParallel(tiny_llama().to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if checkpoint := os.environ.get("MEMTUNE_RESUME_FROM"):
    state = torch.load(Path(checkpoint) / "state.pt", map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def save() -> None:
    """A directory of its own for each save; every rank tells of it."""
    directory = Path(os.environ["MEMTUNE_CHECKPOINT_PATH"]) / f"{os.environ['MEMTUNE_RUN']}-step-{step}"
    if distributed.get_rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, directory / "state.pt")
    checkpoint_saved(directory, samples=samples)


data = RandomTokens(1024, 32)
loader = DataLoader(data, batch_sampler=ResumableSampler(len(data), samples_done=samples))
for batch in islice(loader, STEPS - samples // global_batch):
    for first in range(0, micro_batch * accumulation, micro_batch):
        micro = {name: each[first : first + micro_batch].to(device) for name, each in batch.items()}
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(**micro).loss
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
    samples += global_batch
    step = samples // global_batch
    if step % SAVE_EVERY == 0:
        save()
    if distributed.get_rank() == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
distributed.destroy_process_group()
