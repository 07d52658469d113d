"""Allocates what can be computed by hand, and prints what torch says of it."""

import json
import sys

import torch

first = torch.empty(1000, 1000, device="cuda")
second = torch.empty(64, 1024, 1024, dtype=torch.bfloat16, device="cuda")
del first
(torch.accelerator.memory if "accelerator" in sys.argv else torch.cuda).reset_peak_memory_stats()
small = torch.ones(3, device="cuda")
pinned = torch.empty(1 << 20, dtype=torch.uint8).pin_memory()
free, total = torch.cuda.mem_get_info()
print(json.dumps({"allocated": torch.cuda.memory_allocated(), "free": free, "total": total, "sum": small.sum().item()}))
