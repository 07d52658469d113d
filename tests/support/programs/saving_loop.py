"""A loop of two ranks that saves and tells of it, right or with one of the usual mistakes.

``python saving_loop.py DIRECTORY MANNER``: it saves after two and four of four steps. MANNER is ``right``, ``rank-0``
(rank 0 alone tells, while the others go on), ``rank-0-averages`` (likewise, and the ranks wait for each other after a
step, not in the backward pass), ``rank-0-at-end`` (likewise, after the last step only), ``slow`` (rank 1 takes its time
to write), ``forgets`` (a resumed run counts its samples from 0 again), ``steps`` (samples are steps), ``half`` (samples
are those of one rank) or ``elsewhere`` (it saves outside of checkpoint.path).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from memtune_runner import checkpoint_saved

STEPS, BATCH, WIDTH = 4, 8, 16
# Longer than the period in which a rank looks whether another one waits.
SLOW_SECONDS = 7.0


def main(directory: Path, manner: str) -> None:
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    averages = manner == "rank-0-averages"
    model = nn.Linear(WIDTH, WIDTH) if averages else DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    samples = 0
    if source := os.environ.get("MEMTUNE_RESUME_FROM"):
        model.load_state_dict(torch.load(Path(source) / "weights.pt"))
        samples = 0 if manner == "forgets" else int(os.environ["MEMTUNE_RESUME_SAMPLES"])
    for number in range(1, STEPS + 1):
        model(torch.randn(BATCH // world, WIDTH)).square().mean().backward()
        optimizer.step()
        if averages:
            for weight in model.parameters():
                distributed.all_reduce(weight.data.div_(world))
        optimizer.zero_grad()
        samples += BATCH
        if number % 2 or (manner == "rank-0-at-end" and number < STEPS):
            continue
        target = (
            directory.with_name("other") if manner == "elsewhere" else directory
        ) / f"{os.environ['MEMTUNE_RUN']}-{samples}"
        if rank == 0:
            target.mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), target / "weights.pt")
        elif manner == "slow":
            time.sleep(SLOW_SECONDS)
        if rank == 0 or not manner.startswith("rank-0"):
            told = {"steps": number, "half": samples // world}.get(manner, samples)
            checkpoint_saved(target, samples=told)
            print(f"told of {samples}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
