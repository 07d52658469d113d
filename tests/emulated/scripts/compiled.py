"""Trains a compiled model; prints the peak of the second step in MiB, its loss, and a value that is known."""

import torch

model = torch.nn.Sequential(
    torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.LayerNorm(4096), torch.nn.Linear(4096, 1024)
).to("cuda", torch.bfloat16)
compiled = torch.compile(model)
mask = torch.ones(64, dtype=torch.bool, device="cuda")
for _ in range(2):
    torch.cuda.reset_peak_memory_stats()  # to compile kernels takes memory, too
    loss = compiled(torch.ones(8192, 1024, dtype=torch.bfloat16, device="cuda")).float().pow(2).mean()
    loss.backward()
    model.zero_grad()
print(torch.cuda.max_memory_allocated() >> 20, loss.item(), bool(mask.all()))
