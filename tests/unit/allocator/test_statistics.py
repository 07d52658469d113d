"""The allocator's counters: peaks and waste."""

import pytest

from memtune.allocator import CachingAllocator
from memtune.units import MIB


def test_reset_peaks_start_at_the_held_memory() -> None:  # resetPeakStats
    allocator = CachingAllocator()
    first = allocator.allocate(12 * MIB)
    allocator.allocate(14 * MIB)
    allocator.free(first)
    assert allocator.stats().peak_active_bytes == 26 * MIB
    allocator.reset_peak()
    stats = allocator.stats()
    assert (stats.peak_active_bytes, stats.peak_requested_bytes, stats.peak_allocated_bytes) == (14 * MIB,) * 3
    assert stats.peak_reserved_bytes == 26 * MIB
    assert stats.fragmentation == pytest.approx(12 / 26)


def test_nothing_reserved_is_nothing_wasted() -> None:
    assert CachingAllocator().stats().fragmentation == 0.0
