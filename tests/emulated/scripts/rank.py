"""A rank that is not the first, under DDP, FSDP and DeepSpeed's stages: it holds what rank 0 holds."""

import os
import sys
import time

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

MIB = 2**20
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)


def blocks() -> nn.Sequential:
    """Return 64 MiB of weights."""
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(4))).to(device)


def trained(model: nn.Module) -> int:
    """Return the MiB that are held after a step."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 2048, device=device)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.5)  # the watchdog of NCCL, which looks ten times a second, holds what was sent until then
    return torch.cuda.memory_allocated() // MIB


def sharded(strategy: ShardingStrategy) -> nn.Module:
    """Wrap each layer by itself."""
    wrapped = ModuleWrapPolicy({nn.Linear})
    return FullyShardedDataParallel(blocks(), sharding_strategy=strategy, auto_wrap_policy=wrapped, device_id=device)


def deepspeed(stage: int) -> int:
    """Return the MiB that are held after a step of DeepSpeed."""
    import deepspeed  # type: ignore[import-untyped]  # it has no types

    optimizer = {"type": "AdamW", "params": {"torch_adam": True}}
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": optimizer, "zero_optimization": {"stage": stage}}
    engine = deepspeed.initialize(model=blocks(), config=config)[0]
    engine.backward(engine(torch.ones(4, 2048, device=device)).mean())
    engine.step()
    return torch.cuda.memory_allocated() // MIB


distributed.init_process_group("nccl")
print("rank", distributed.get_rank(), "on", device, "of", torch.cuda.device_count())
if len(sys.argv) > 1:
    print("held", deepspeed(int(sys.argv[1])))
else:
    print("ddp", trained(nn.parallel.DistributedDataParallel(blocks())))
    print("full", trained(sharded(ShardingStrategy.FULL_SHARD)))
    print("hybrid", trained(sharded(ShardingStrategy.HYBRID_SHARD)))
    whole = blocks()
    for layer in whole:
        fully_shard(layer)
    fully_shard(whole)
    print("fsdp2", trained(whole))
