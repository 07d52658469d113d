"""Trains three epochs on 58 rows, saves after each step, and prints the rows that each step has trained.

The rows are shuffled in the way that ``--shuffle`` names. A relaunch with ``--resume-from`` leaves out what was trained
of its epoch: by ``skip_first_batches`` as transformers' examples do, or with ``--by-hand`` batch by batch.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from accelerate.utils import DataLoaderConfiguration  # type: ignore[import-untyped]  # as above
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

ROWS, EPOCHS, GLOBAL_BATCH = 58, 3, 8

parser = argparse.ArgumentParser()
parser.add_argument("--shuffle", default="plain", choices=["plain", "generator", "subset", "seedable"])
parser.add_argument("--resume-from")
parser.add_argument("--by-hand", action="store_true")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--drop-last", action="store_true")
args = parser.parse_args()
accumulation = GLOBAL_BATCH // args.batch

config = DataLoaderConfiguration(use_seedable_sampler=args.shuffle == "seedable")
accelerator = Accelerator(gradient_accumulation_steps=accumulation, dataloader_config=config)
# Each attempt's random numbers are its own.
torch.manual_seed(int(os.environ["MEMTUNE_ATTEMPT"]))
data = TensorDataset(torch.arange(ROWS).float().unsqueeze(1))
shuffled: dict[str, Any] = {"shuffle": True}
if args.shuffle == "generator":
    shuffled["generator"] = torch.Generator()
if args.shuffle == "subset":
    shuffled = {"sampler": SubsetRandomSampler(range(ROWS))}
loader = DataLoader(data, batch_size=args.batch, num_workers=args.workers, drop_last=args.drop_last, **shuffled)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

completed = first_epoch = skipped = 0
if args.resume_from:
    accelerator.load_state(args.resume_from)
    completed = int(args.resume_from.rpartition("-")[2])
    # transformers' examples take the last step of an epoch for a whole one, which skip_first_batches allows for.
    batches_of_epoch = math.ceil(len(loader) / accumulation) * accumulation if args.by_hand else len(loader)
    first_epoch, skipped = divmod(completed * accumulation, batches_of_epoch)

for epoch in range(first_epoch, EPOCHS):
    batches = loader
    if skipped and not args.by_hand:
        batches = accelerator.skip_first_batches(loader, skipped)
    rows: list[int] = []
    for number, (batch,) in enumerate(batches):
        if args.by_hand and number < skipped:
            continue
        rows += batch.flatten().int().tolist()
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            completed += 1
            print(f"epoch {epoch} step {completed} rows {rows}", flush=True)
            rows.clear()
            accelerator.save_state(str(Path(os.environ["MEMTUNE_CHECKPOINT_PATH"]) / f"step-{completed}"))
    skipped = 0
