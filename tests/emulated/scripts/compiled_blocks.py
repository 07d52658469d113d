"""Trains checkpointed blocks, compiled in each given mode; prints the second step's peak in MiB, and the graphs."""

import sys

import torch
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint


class Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
            for _ in range(6)
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            batch = batch + checkpoint(block, batch, use_reentrant=False)
        return batch


for mode in sys.argv[1:]:
    torch._dynamo.reset()
    counters.clear()
    model = Blocks().to("cuda", torch.bfloat16)
    compiled = torch.compile(model, mode=mode, fullgraph=True)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        compiled(torch.ones(16384, 512, dtype=torch.bfloat16, device="cuda")).float().mean().backward()
        model.zero_grad()
    print(torch.cuda.max_memory_allocated() >> 20, counters["stats"]["unique_graphs"])
