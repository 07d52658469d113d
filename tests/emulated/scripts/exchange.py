"""Starts two ranks by itself, which are processes of their own, and has them exchange objects and numbers over NCCL."""

import os

import torch
import torch.distributed._functional_collectives as functional
from torch import distributed
from torch.multiprocessing.spawn import spawn

RANKS = 2


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, device="cuda")


def exchange_numbers(rank: int) -> None:
    """Check what comes of numbers that both ranks know."""
    both = [numbers(0), numbers(0)]
    for operation, reduced in ("SUM", 11), ("MAX", 6), ("MIN", 5), ("PRODUCT", 30), ("AVG", 5):
        distributed.all_reduce(given := numbers(5 + rank), op=getattr(distributed.ReduceOp, operation))
        assert given.item() == reduced
    distributed.all_reduce(given := numbers(0.5, 1.0 + rank), distributed.ReduceOp.AVG)
    assert given.tolist() == [0.5, 1.5]
    distributed.broadcast(given := numbers(rank == 1, False), src=1)
    assert given[0]
    distributed.all_gather(both, numbers(rank))
    assert torch.cat(both).tolist() == [0, 1]
    distributed.all_gather_into_tensor(given := numbers(0, 0, 0, 0), numbers(rank, 7))
    assert given.tolist() == [0, 7, 1, 7]
    pieces = list(torch.empty(2, 1, dtype=torch.int64, device="cuda"))
    distributed.gather(numbers(rank), pieces if rank == 0 else None)
    assert rank == 1 or pieces[1].item() == 1
    distributed.scatter(given := numbers(0), [numbers(3), numbers(4)] if rank == 0 else None)
    assert given.item() == 3 + rank
    distributed.reduce(given := numbers(5 + rank), 1)
    assert given.item() == (11 if rank else 5)
    distributed.reduce_scatter(given := numbers(0), [numbers(rank), numbers(10 + rank)])
    assert given.item() == (21 if rank else 1)
    distributed.reduce_scatter_tensor(given := numbers(0), numbers(rank, 10 + rank))
    assert given.item() == (21 if rank else 1)
    distributed.all_to_all(both, [numbers(10 * rank), numbers(10 * rank + 1)])
    assert torch.cat(both).tolist() == [rank, 10 + rank]
    # Rank 0 sends three numbers and gets two, as experts do.
    sizes = [[1, 2], [1, 1]]
    taken = [each[rank] for each in sizes]
    distributed.all_to_all_single(
        given := torch.zeros(sum(taken), dtype=torch.int64, device="cuda"), numbers(*range(sum(sizes[rank]))),
        taken, sizes[rank],
    )  # fmt: skip
    assert given.tolist() == ([1, 2, 1] if rank else [0, 0])
    assert (
        functional.all_reduce(numbers(5 + rank), "sum", distributed.distributed_c10d._get_default_group()).item() == 11
    )
    # Neither waits for what the other sends later.
    other, found = 1 - rank, numbers(0)
    works = [
        distributed.P2POp(distributed.irecv, found, other),
        distributed.P2POp(distributed.isend, numbers(rank), other),
    ]
    for work in distributed.batch_isend_irecv(works):
        work.wait()
    assert found.item() == other
    # What one rank has made up is not true on the other, either.
    distributed.broadcast(flag := torch.rand(1, device="cuda") if rank else numbers(0.5), src=1)
    print("made up", flag.item(), flush=True)
    distributed.all_reduce(large := numbers(*[1.0] * 2048))
    print("not sent", large[0].item(), flush=True)
    distributed.barrier()  # so that the store lives as long as it is read


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
    exchange_numbers(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[rank])
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    print(f"rank {rank} was told all\n", end="")
    distributed.destroy_process_group()


if __name__ == "__main__":
    spawn(exchange, nprocs=RANKS)
