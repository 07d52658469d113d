"""GPU memory that the driver counts and torch's allocator does not: the CUDA context and NCCL's buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from memtune.units import MIB

# 287 MB with lazy loading, 667 MB without (pytorch#86509); 500 MB is between.
CONTEXT_BYTES = 500.0 * MIB
# One communicator takes 0.5 to 1.6 GB (nccl#964, #864), growing with the ranks it reaches.
NCCL_BYTES = 700.0 * MIB
NCCL_BYTES_PER_DOUBLING = 100.0 * MIB

# How much jobs of one image, GPU and world differ even if their measurements agree: other models load other kernels,
# other plans make other communicators. Chosen, not fitted: no published run has this number.
_BETWEEN_JOBS = 0.2
# A value this many times off the constants is another process's memory, or no measurement.
_CREDIBLE = 4.0


def outside_sizes(world: int) -> dict[str, float]:
    """The expected bytes of each part on one of ``world`` GPUs."""
    if world == 1:
        return {"context": CONTEXT_BYTES}
    return {"context": CONTEXT_BYTES, "nccl": NCCL_BYTES + NCCL_BYTES_PER_DOUBLING * math.log2(world)}


def is_credible(outside_bytes: int, world: int) -> bool:
    """Whether a context and its communicators may take this much."""
    expected = sum(outside_sizes(world).values())
    return expected / _CREDIBLE <= outside_bytes <= expected * _CREDIBLE


def experienced(sizes: Sequence[int], world: int) -> tuple[float, float]:
    """The expected bytes outside the allocator of the next job, and their half-width.

    The half-width always covers each job's measurement and, while there are few jobs, the constants.
    """
    middle = median(sizes)
    spread = max(abs(size - middle) for size in sizes)
    doubt = abs(middle - sum(outside_sizes(world).values())) / len(sizes)
    return middle, max(_BETWEEN_JOBS * middle, spread, doubt)
