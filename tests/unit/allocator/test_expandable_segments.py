"""Expandable segments ("Note [Expandable Segments]" in c10/cuda/CUDACachingAllocator.cpp), by hand."""

from __future__ import annotations

import pytest

from memtune.allocator import AllocatorOutOfMemory, AllocatorSettings, CachingAllocator
from memtune.units import MIB

EXPANDABLE = AllocatorSettings(expandable_segments=True)


@pytest.mark.parametrize(
    ("requested", "mapped_mib"), [(1, 2), (MIB, 2), (MIB + 1, 20), (20 * MIB, 20), (33 * MIB, 40), (41 * MIB, 60)]
)
def test_pages_are_2_mib_in_the_small_pool_and_20_in_the_large(requested: int, mapped_mib: int) -> None:
    allocator = CachingAllocator(settings=EXPANDABLE)
    allocator.allocate(requested)
    assert allocator.stats().reserved_bytes == mapped_mib * MIB


def test_the_free_end_of_the_segment_is_used_before_new_pages() -> None:  # find_expandable_block
    allocator = CachingAllocator(settings=EXPANDABLE)
    first = allocator.allocate(5 * MIB)
    second = allocator.allocate(18 * MIB)  # 15 MiB are free at the end, one page gives the rest
    assert second == first + 5 * MIB
    assert allocator.stats().reserved_bytes == 40 * MIB
    assert allocator.stats().largest_free_block_bytes == 17 * MIB


def test_a_rest_of_512_bytes_is_kept_in_the_large_pool_too() -> None:  # should_split
    allocator = CachingAllocator(settings=EXPANDABLE)
    allocator.allocate(20 * MIB - 512)
    assert allocator.stats().allocated_bytes == 20 * MIB - 512
    assert allocator.stats().largest_free_block_bytes == 512


def test_inner_gaps_are_filled_before_the_end_that_can_grow() -> None:  # get_free_block: expandable_size
    allocator = CachingAllocator(settings=EXPANDABLE)
    first = allocator.allocate(19 * MIB)
    allocator.allocate(10 * MIB)
    allocator.free(first)  # a gap of 19 MiB; the end has 11 MiB and would be the better fit
    assert allocator.allocate(5 * MIB) == first


def test_free_blocks_are_not_inactive_split() -> None:  # free_block: pages can always be released
    allocator = CachingAllocator(settings=EXPANDABLE)
    allocator.free(allocator.allocate(5 * MIB))
    allocator.allocate(6 * MIB)
    assert allocator.stats().peak_inactive_split_bytes == 0


def test_only_whole_free_pages_are_unmapped_and_filled_again_from_below() -> None:  # unmap_block, map_block
    allocator = CachingAllocator(settings=EXPANDABLE)
    first = allocator.allocate(30 * MIB)
    allocator.allocate(5 * MIB)
    allocator.free(first)
    allocator.empty_cache()  # page 0 goes; page 1 holds 10 MiB free, 5 used, 5 free
    assert allocator.stats().reserved_bytes == 20 * MIB
    assert allocator.stats().largest_free_block_bytes == 10 * MIB
    assert allocator.allocate(25 * MIB) == first  # page 0 again, and 5 of the 10 MiB behind it
    assert allocator.stats().reserved_bytes == 40 * MIB


def test_a_segment_that_is_all_free_is_released() -> None:  # release_expandable_segment
    allocator = CachingAllocator(settings=EXPANDABLE)
    handles = [allocator.allocate(size_bytes) for size_bytes in (1, 50 * MIB)]
    for handle in handles:
        allocator.free(handle)
    allocator.empty_cache()
    assert allocator.stats().reserved_bytes == 0
    assert allocator.snapshot() == []
    assert allocator.allocate(1) not in handles  # the addresses went too: this is a new segment


def test_each_stream_has_its_own_segment() -> None:
    allocator = CachingAllocator(settings=EXPANDABLE)
    for stream in (0, 1):
        allocator.allocate(1, stream)
    assert {(segment.stream, segment.is_small) for segment in allocator.snapshot()} == {(0, True), (1, True)}
    assert allocator.stats().reserved_bytes == 4 * MIB


def test_a_retry_unmaps_memory_cached_by_another_stream() -> None:  # release_blocks
    allocator = CachingAllocator(40 * MIB, EXPANDABLE)
    allocator.free(allocator.allocate(30 * MIB, stream=0))
    allocator.allocate(30 * MIB, stream=1)
    assert (allocator.stats().retries, allocator.stats().reserved_bytes) == (1, 40 * MIB)


def test_out_of_memory_counts_pages() -> None:
    allocator = CachingAllocator(39 * MIB, EXPANDABLE)
    allocator.allocate(20 * MIB)
    with pytest.raises(AllocatorOutOfMemory):
        allocator.allocate(MIB + 512)  # a second page of 20 MiB
    assert (allocator.stats().retries, allocator.stats().ooms) == (1, 1)
    assert allocator.allocate(MIB)  # but a small page still fits


def test_address_space_is_nine_eighths_of_the_limit_then_a_new_segment_begins() -> None:  # find_expandable_block
    allocator = CachingAllocator(80 * MIB, EXPANDABLE)  # 90 MiB of addresses: five pages
    pages = [allocator.allocate(20 * MIB) for _ in range(4)]
    for index in (0, 2):
        allocator.free(pages[index])
    allocator.empty_cache()
    # Pages 0, 2 and 4 have no memory, no two of them are neighbours.
    allocator.allocate(40 * MIB)
    assert len(allocator.snapshot()) == 2
    assert allocator.stats().reserved_bytes == 80 * MIB


def test_max_split_size_has_no_oversize_segment_to_release() -> None:  # release_available_cached_blocks
    settings = AllocatorSettings(expandable_segments=True, max_split_size_bytes=32 * MIB)
    allocator = CachingAllocator(80 * MIB, settings)
    allocator.free(allocator.allocate(40 * MIB, stream=1))
    allocator.allocate(60 * MIB)
    assert (allocator.stats().retries, allocator.stats().reserved_bytes) == (1, 60 * MIB)
