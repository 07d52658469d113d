"""Groups over gloo and NCCL, whose other ranks are not there."""

import torch
from torch import distributed

distributed.init_process_group("cpu:gloo,cuda:nccl")
world = distributed.get_world_size()
on_host, on_gpu = torch.ones(4), torch.ones(4, device="cuda")
distributed.all_reduce(on_host)
distributed.all_reduce(on_gpu)
found = [None] * world
distributed.all_gather_object(found, {"rank": distributed.get_rank()})
assert found == [{"rank": 0}] * world, found
distributed.barrier(group=distributed.new_group(backend="gloo"))
