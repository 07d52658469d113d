"""A plain loop with a batch of its own, as many scripts have it. Integration: env; it reads nothing of the plan."""

from __future__ import annotations

import torch
from tiny_model import RandomTokens, tiny_llama
from torch.utils.data import DataLoader

BATCH_SIZE, ACCUMULATION, STEPS = 4, 8, 8

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = tiny_llama().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(RandomTokens(BATCH_SIZE * ACCUMULATION * STEPS, 32), batch_size=BATCH_SIZE, shuffle=True)

for number, batch in enumerate(loader, start=1):
    with torch.autocast(device.type, torch.bfloat16):
        loss = model(**{name: each.to(device) for name, each in batch.items()}).loss
    (loss / ACCUMULATION).backward()
    if number % ACCUMULATION == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {number // ACCUMULATION} loss {loss.item():.3f}", flush=True)
