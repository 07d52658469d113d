"""A plain PyTorch loop with DistributedDataParallel. Integration: env; the script reads the plan's two numbers."""

from __future__ import annotations

import os

import torch
from tiny_model import RandomTokens, tiny_llama
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

micro_batch = int(os.environ.get("MEMTUNE_MICRO_BATCH", 8))
accumulation = int(os.environ.get("MEMTUNE_ACCUMULATION", 1))

device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
model = DistributedDataParallel(tiny_llama().to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = RandomTokens(256, 32)
loader = DataLoader(data, batch_size=micro_batch, sampler=DistributedSampler(data))

for number, batch in enumerate(loader, start=1):
    with torch.autocast(device.type, torch.bfloat16):
        loss = model(**{name: each.to(device) for name, each in batch.items()}).loss
    (loss / accumulation).backward()
    if number % accumulation == 0:
        optimizer.step()
        optimizer.zero_grad()
print(f"final loss {loss.item():.3f}")
distributed.destroy_process_group()
