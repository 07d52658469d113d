"""Starts its ranks by itself, as scripts without a launcher do; the arguments are their number and what starts them."""

import os
import sys

import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn, start_processes


def train(rank: int, world: int) -> None:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=world)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4096, 4096).cuda(), device_ids=[rank])
    model(torch.ones(4, 4096, device="cuda")).sum().backward()
    print("rank", rank, "of", distributed.get_world_size())
    distributed.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if sys.argv[1:] else torch.cuda.device_count()
    if sys.argv[2:] == ["start_processes"]:
        started = start_processes(train, (ranks,), ranks, join=False, start_method="forkserver")
        while not started.join():
            pass
        print("exit codes", [process.exitcode for process in started.processes])
    else:
        spawn(train, args=(ranks,), nprocs=ranks)
