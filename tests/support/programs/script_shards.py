"""A script that shards with FSDP2 by itself, and saves one file for each rank.

``python script_shards.py DIRECTORY``: six steps; what there is after three is saved below the directory.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from memtune_runner import checkpoint_saved

STEPS, SAVED_AFTER, BATCH, WIDTH = 6, 3, 8, 16


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def states(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All that this rank holds, in an order of its own."""
    found: list[Any] = list(model.parameters())
    for weight in model.parameters():
        found += [each for _, each in sorted(optimizer.state[weight].items())]
    return [local(each.detach()) for each in found]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    generator = torch.Generator().manual_seed(number)
    rows = torch.randn(BATCH, WIDTH, generator=generator).chunk(distributed.get_world_size())[distributed.get_rank()]
    loss = model(rows).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach() / distributed.get_world_size()
    distributed.all_reduce(mean)
    return float(mean)


def make_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer's states, to be read into; a backward pass would be a training that has loaded nothing."""
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()


def main(directory: Path) -> None:
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    file, done = f"rank-{distributed.get_rank()}.pt", 0
    source = os.environ.get("MEMTUNE_RESUME_FROM")
    if source:
        done = int(os.environ["MEMTUNE_RESUME_SAMPLES"]) // BATCH
        make_states(model, optimizer)
        for own, read in zip(states(model, optimizer), torch.load(Path(source) / file), strict=True):
            own.copy_(read)
    for number in range(done + 1, STEPS + 1):
        print(f"step {number} loss {step(model, optimizer, number):.6f}", flush=True)
        if number == SAVED_AFTER:
            target = directory / f"step-{number}"
            target.mkdir(parents=True, exist_ok=True)
            torch.save(states(model, optimizer), target / file)
            checkpoint_saved(target, samples=number * BATCH)
    # FSDP's hooks refer to each other and to their group, whose threads abort the process if they see Python's end.
    del model, optimizer
    gc.collect()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
