"""A training loop with accelerate. Integration: accelerate; the plan replaces batch size, accumulation and engine."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from tiny_model import RandomTokens, tiny_llama
from torch.utils.data import DataLoader

accelerator = Accelerator(gradient_accumulation_steps=1)
model = tiny_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(RandomTokens(64, 32), batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

model.train()
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
accelerator.print(f"final loss {loss.item():.3f}")
