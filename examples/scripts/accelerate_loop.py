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
evaluation = DataLoader(RandomTokens(16, 32), batch_size=8)
model, optimizer, loader, evaluation = accelerator.prepare(model, optimizer, loader, evaluation)

model.train()
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
model.eval()
with torch.no_grad():
    losses = torch.stack([model(**batch).loss for batch in evaluation])
accelerator.print(f"final loss {loss.item():.3f}, evaluated {losses.mean().item():.3f}")
