"""Empties the cache, makes the allocator retry, and runs out of memory; prints its fixture and what torch counts."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import torch
from gpu_snapshot import fixture_of, noticed_emptying

torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=1000)
with noticed_emptying() as emptied:
    _, total = torch.cuda.mem_get_info()

    def take(percent: int) -> torch.Tensor:
        return torch.empty(total // 100 * percent, dtype=torch.uint8, device="cuda")

    held = take(30)
    del held
    torch.cuda.empty_cache()
    held = take(40)  # after an emptied cache, and without a retry
    with torch.cuda.stream(torch.cuda.Stream()):
        other = take(35)
    del held, other
    held = take(70)  # what is cached for the other stream is in the way
    with suppress(torch.cuda.OutOfMemoryError):
        take(40)
stats = torch.cuda.memory_stats()
retries = stats["num_alloc_retries"]
fixture = fixture_of(torch.cuda.memory._snapshot(), torch.__version__, emptied, retries=retries)
print(json.dumps({"fixture": fixture, "retries": retries, "ooms": stats["num_ooms"]}))
sys.stdout.flush()
