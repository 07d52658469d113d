"""A limit that changes while the allocator runs: a neighbour that takes memory, or a fraction set by hand."""

import pytest

from memtune.allocator import AllocatorOutOfMemory, CachingAllocator
from memtune.units import MIB


def test_reserved_memory_stays_and_more_than_the_limit_is_refused() -> None:
    allocator = CachingAllocator(100 * MIB)
    held = allocator.allocate(50 * MIB)
    allocator.set_limit(40 * MIB)
    assert allocator.stats().reserved_bytes == 50 * MIB
    with pytest.raises(AllocatorOutOfMemory) as caught:
        allocator.allocate(20 * MIB)
    assert caught.value.limit_bytes == 40 * MIB
    allocator.free(held)
    allocator.allocate(20 * MIB)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="give 0 or more"):
        CachingAllocator().set_limit(-1)
