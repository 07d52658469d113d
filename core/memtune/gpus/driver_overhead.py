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

# By how much jobs of one image, GPU and world differ even where they came out alike: other models load other kernels,
# other plans make other communicators. Chosen, not fitted: no published run tells it.
_BETWEEN_JOBS = 0.2
# What is so far from the constants is another process's memory, or no measurement at all.
_CREDIBLE = 4.0


def outside_sizes(world: int) -> dict[str, float]:
    """The expected bytes of each part on one of ``world`` GPUs."""
    if world == 1:
        return {"context": CONTEXT_BYTES}
    return {"context": CONTEXT_BYTES, "nccl": NCCL_BYTES + NCCL_BYTES_PER_DOUBLING * math.log2(world)}


def is_credible(outside_bytes: int, world: int) -> bool:
    """Whether so much may be a context and its communicators."""
    expected = sum(outside_sizes(world).values())
    return expected / _CREDIBLE <= outside_bytes <= expected * _CREDIBLE


def experienced(sizes: Sequence[int], world: int) -> tuple[float, float]:
    """The bytes that one more job is expected to have outside after these jobs, and the half-width of that.

    The half-width never leaves out what a job had and, as long as there are few jobs, what the constants say.
    """
    middle = median(sizes)
    spread = max(abs(size - middle) for size in sizes)
    doubt = abs(middle - sum(outside_sizes(world).values())) / len(sizes)
    return middle, max(_BETWEEN_JOBS * middle, spread, doubt)
