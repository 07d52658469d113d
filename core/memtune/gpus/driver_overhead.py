"""Memory that a GPU's driver takes outside torch's allocator: the CUDA context, and NCCL's buffers."""

from __future__ import annotations

import math

from memtune.units import MIB

# 287 MB with lazy loading, 667 MB without (pytorch#86509); 500 MB is between.
CONTEXT_BYTES = 500.0 * MIB
# One communicator takes 0.5 to 1.6 GB (nccl#964, #864), growing with the ranks it reaches.
NCCL_BYTES = 700.0 * MIB
NCCL_BYTES_PER_DOUBLING = 100.0 * MIB


def expected_overhead(world: int) -> dict[str, float]:
    """What the driver is expected to take on one of ``world`` GPUs beside torch's allocator, by part, in bytes."""
    if world == 1:
        return {"context": CONTEXT_BYTES}
    return {"context": CONTEXT_BYTES, "nccl": NCCL_BYTES + NCCL_BYTES_PER_DOUBLING * math.log2(world)}
