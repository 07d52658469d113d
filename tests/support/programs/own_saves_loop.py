"""Loops that are trained and saved in ways of their own: ``fsdp``, ``untold`` saves, also before it runs
``out-of-memory``, a final ``export``, a ``gan``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard

BATCH = int(os.environ["MEMTUNE_MICRO_BATCH"])


def train(kind: str) -> None:
    """Train six steps."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    if kind == "fsdp":
        distributed.init_process_group("gloo")
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.save([], "prepared.pt")
    for step in range(6):
        model(torch.randn(BATCH, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if kind in ("untold", "out-of-memory") and step == 3:
            torch.save(model.state_dict(), Path(os.environ["MEMTUNE_CHECKPOINT_PATH"]) / "model.pt")
        if kind == "out-of-memory" and step == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if kind == "export":
        torch.save(model.state_dict(), "model.pt")
    if kind == "fsdp":
        distributed.destroy_process_group()


def train_gan() -> None:
    """Train a generator and a discriminator, which sees two passes of each sample."""
    from memtune_runner import checkpoint_saved

    generator, discriminator = (torch.nn.Sequential(torch.nn.Linear(16, 16)) for _ in range(2))
    optimizers = [torch.optim.Adam(each.parameters()) for each in (discriminator, generator)]
    for _ in range(6):
        discriminator(torch.randn(BATCH, 16)).sum().backward()
        made = generator(torch.randn(BATCH, 16))
        discriminator(made.detach()).sum().backward()
        optimizers[0].step()
        discriminator(made).sum().backward()
        optimizers[1].step()
    directory = Path(os.environ["MEMTUNE_CHECKPOINT_PATH"]) / "step-6"
    directory.mkdir(parents=True)
    torch.save(generator.state_dict(), directory / "model.pt")
    checkpoint_saved(directory, samples=6 * BATCH)


if __name__ == "__main__":
    train_gan() if sys.argv[1] == "gan" else train(sys.argv[1])
