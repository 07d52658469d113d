"""A plain PyTorch loop with FSDP2. Integration: env; the script reads the plan's two numbers."""

from __future__ import annotations

import os

import torch
from tiny_model import RandomTokens, tiny_llama
from torch import distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler

micro_batch = int(os.environ.get("MEMTUNE_MICRO_BATCH", 8))
accumulation = int(os.environ.get("MEMTUNE_ACCUMULATION", 1))

device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
model = tiny_llama().to(device)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
mesh = distributed.init_device_mesh(device.type, (distributed.get_world_size(),))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = RandomTokens(256, 32)
loader = DataLoader(data, batch_size=micro_batch, sampler=DistributedSampler(data))

for number, batch in enumerate(loader, start=1):
    loss = model(**{name: each.to(device) for name, each in batch.items()}).loss
    (loss / accumulation).backward()
    if number % accumulation == 0:
        optimizer.step()
        optimizer.zero_grad()
print(f"final loss {loss.item():.3f}")
distributed.destroy_process_group()
