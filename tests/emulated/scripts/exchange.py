"""Starts two ranks by itself, which are processes of their own, and has them exchange objects over NCCL's group."""

import os

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

RANKS = 2


def exchange(rank: int) -> None:
    """Check what comes from the other rank."""
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29513"}
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=RANKS)
    assert distributed.get_backend() == "nccl"
    own, other = {"rank": rank, "text": "x" * (1 + 9 * rank)}, {"rank": 1 - rank, "text": "x" * (10 - 9 * rank)}
    both = [own, other] if rank == 0 else [other, own]
    for group in (None, distributed.new_group([0, 1])):
        gathered = [None] * RANKS
        distributed.all_gather_object(gathered, own, group=group)
        assert gathered == both
        collected = [None] * RANKS if rank == 0 else None
        distributed.gather_object(own, collected, group=group)
        assert collected == (both if rank == 0 else None)
        scattered = [None]
        distributed.scatter_object_list(scattered, both if rank == 0 else None, group=group)
        assert scattered == [own]
        for device in (None, torch.device("cuda", rank)):
            sent = [own]
            distributed.broadcast_object_list(sent, src=1, group=group, device=device)
            assert sent == [both[1]]
        passed = [own]
        if rank == 0:
            distributed.send_object_list(passed, 1, group, torch.device("cuda"))
        else:
            distributed.recv_object_list(passed, 0, group, torch.device("cuda"))
        assert passed == [both[0]]
        distributed.barrier(group)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[rank])
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    print(f"rank {rank} was told all\n", end="")
    distributed.destroy_process_group()


if __name__ == "__main__":
    spawn(exchange, nprocs=RANKS)
