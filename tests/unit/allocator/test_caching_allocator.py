"""The allocator's rules, with numbers by hand. Comments name functions in c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import pytest

from memtune.allocator import AllocatorOutOfMemory, AllocatorSettings, CachingAllocator
from memtune.units import MIB


def filled(allocator: CachingAllocator, *sizes_bytes: int, stream: int = 0) -> list[int]:
    return [allocator.allocate(size_bytes, stream) for size_bytes in sizes_bytes]


def cached(allocator: CachingAllocator, *sizes_bytes: int, stream: int = 0) -> None:
    """Leave blocks in the cache. All are allocated before the first is freed, so none serves another."""
    for handle in filled(allocator, *sizes_bytes, stream=stream):
        allocator.free(handle)


class TestSizes:
    @pytest.mark.parametrize(("requested", "block"), [(1, 512), (512, 512), (513, 1024), (5 * MIB - 1, 5 * MIB)])
    def test_requests_are_rounded_up_to_512_bytes(self, requested: int, block: int) -> None:  # round_size
        allocator = CachingAllocator()
        allocator.allocate(requested)
        stats = allocator.stats()
        assert (stats.requested_bytes, stats.allocated_bytes, stats.active_bytes) == (requested, block, block)

    @pytest.mark.parametrize(
        ("requested", "segment_mib"),
        [
            (1, 2),
            (MIB, 2),  # kSmallSize belongs to the small pool
            (MIB + 1, 20),
            (10 * MIB - 512, 20),
            (10 * MIB - 511, 10),  # the rounded size decides: it is kMinLargeAlloc
            (10 * MIB, 10),
            (10 * MIB + 1, 12),
            (33 * MIB, 34),
        ],
    )
    def test_segments_come_in_few_sizes(self, requested: int, segment_mib: int) -> None:  # get_allocation_size
        allocator = CachingAllocator()
        allocator.allocate(requested)
        assert allocator.stats().reserved_bytes == segment_mib * MIB

    def test_a_request_of_no_bytes_gets_no_block(self) -> None:  # NativeCachingAllocator::allocate
        allocator = CachingAllocator(limit_bytes=0)
        handle = allocator.allocate(0)
        allocator.record_stream(handle, 1)
        allocator.free(handle)
        assert handle == 0
        assert allocator.stats().peak_reserved_bytes == 0

    def test_a_negative_request_is_refused(self) -> None:
        with pytest.raises(ValueError, match="size_bytes is -1"):
            CachingAllocator().allocate(-1)


class TestSplitting:
    def test_the_small_pool_keeps_a_rest_of_512_bytes(self) -> None:  # should_split
        allocator = CachingAllocator()
        filled(allocator, MIB, MIB - 512)
        assert allocator.stats().largest_free_block_bytes == 512
        allocator.allocate(1)
        assert allocator.stats().largest_free_block_bytes == 0
        assert allocator.stats().reserved_bytes == 2 * MIB

    @pytest.mark.parametrize(
        ("requested", "block"),
        [(19 * MIB, 20 * MIB), (19 * MIB - 512, 19 * MIB - 512)],  # a rest of 1 MiB, and of 512 bytes more
    )
    def test_the_large_pool_keeps_only_a_rest_over_1_mib(self, requested: int, block: int) -> None:  # should_split
        allocator = CachingAllocator()
        cached(allocator, 5 * MIB)
        allocator.allocate(requested)
        assert allocator.stats().allocated_bytes == block
        assert allocator.stats().reserved_bytes == 20 * MIB

    def test_free_parts_of_a_segment_in_use_are_inactive_split(self) -> None:  # alloc_found_block, free_block
        allocator = CachingAllocator()
        first, second = filled(allocator, 5 * MIB, 6 * MIB)
        assert allocator.stats().inactive_split_bytes == 9 * MIB
        allocator.free(first)
        assert allocator.stats().inactive_split_bytes == 14 * MIB
        allocator.free(second)
        assert allocator.stats().inactive_split_bytes == 0
        assert allocator.stats().peak_inactive_split_bytes == 15 * MIB  # after the first request

    def test_a_split_block_handed_out_whole_is_no_longer_inactive(self) -> None:  # alloc_found_block
        allocator = CachingAllocator()
        filled(allocator, 5 * MIB, 15 * MIB - 512)
        assert allocator.stats().allocated_bytes == 20 * MIB
        assert allocator.stats().inactive_split_bytes == 0


class TestBestFit:
    def test_the_smallest_block_that_is_large_enough_is_taken(self) -> None:  # get_free_block
        allocator = CachingAllocator()
        cached(allocator, 12 * MIB, 30 * MIB, 14 * MIB)
        allocator.allocate(13 * MIB)
        assert allocator.stats().allocated_bytes == 14 * MIB

    def test_the_lower_address_of_two_equal_blocks_is_taken(self) -> None:  # BlockComparatorSize
        allocator = CachingAllocator()
        low, high = filled(allocator, 12 * MIB, 12 * MIB)
        allocator.free(high)
        allocator.free(low)
        assert allocator.allocate(12 * MIB) == min(low, high)

    def test_small_requests_never_use_the_large_pool(self) -> None:  # get_pool
        allocator = CachingAllocator()
        cached(allocator, 12 * MIB)
        allocator.allocate(MIB)
        assert allocator.stats().reserved_bytes == 14 * MIB

    def test_streams_do_not_share_cached_blocks(self) -> None:  # BlockComparatorSize orders by stream first
        allocator = CachingAllocator()
        cached(allocator, 12 * MIB, stream=0)
        allocator.allocate(12 * MIB, stream=1)
        assert allocator.stats().reserved_bytes == 24 * MIB


class TestCoalescing:
    def test_neighbours_join_in_any_order_of_frees(self) -> None:  # try_merge_blocks
        allocator = CachingAllocator()
        first, second, third = filled(allocator, MIB // 2, MIB // 2, MIB // 2)
        allocator.free(second)
        assert allocator.stats().largest_free_block_bytes == MIB // 2
        allocator.free(first)
        assert allocator.stats().largest_free_block_bytes == MIB
        allocator.free(third)
        assert allocator.stats().largest_free_block_bytes == 2 * MIB

    def test_segments_do_not_join(self) -> None:
        allocator = CachingAllocator()
        cached(allocator, 12 * MIB, 12 * MIB)
        assert allocator.stats().largest_free_block_bytes == 12 * MIB

    def test_a_handle_can_be_freed_once(self) -> None:
        allocator = CachingAllocator()
        handle = allocator.allocate(1)
        allocator.free(handle)
        with pytest.raises(ValueError, match=f"handle {handle} is not allocated"):
            allocator.free(handle)
        with pytest.raises(ValueError, match=f"handle {handle} is not allocated"):
            allocator.record_stream(handle, 1)


class TestLimit:
    def test_memory_cached_by_another_stream_is_released_before_the_second_try(self) -> None:  # release_cached_blocks
        allocator = CachingAllocator(limit_bytes=20 * MIB)
        cached(allocator, 12 * MIB, stream=0)
        allocator.allocate(12 * MIB, stream=1)
        stats = allocator.stats()
        assert (stats.retries, stats.ooms, stats.reserved_bytes) == (1, 0, 12 * MIB)

    def test_a_segment_in_use_cannot_be_released(self) -> None:  # release_blocks
        allocator = CachingAllocator(limit_bytes=22 * MIB)
        kept, freed = filled(allocator, 5 * MIB, 5 * MIB)
        allocator.free(freed)
        with pytest.raises(
            AllocatorOutOfMemory
        ) as caught:  # 15 MiB are free in one piece, 2 MiB are left on the device
            allocator.allocate(16 * MIB)
        error = caught.value
        facts = (error.requested_bytes, error.limit_bytes, error.allocated_bytes, error.reserved_bytes)
        assert facts == (16 * MIB, 22 * MIB, 5 * MIB, 20 * MIB)
        assert (allocator.stats().retries, allocator.stats().ooms) == (1, 1)
        allocator.free(kept)
        allocator.allocate(16 * MIB)  # the 20 MiB are one block again
        assert allocator.stats().retries == 1

    def test_the_rounded_segment_counts_not_the_request(self) -> None:  # alloc_block
        with pytest.raises(AllocatorOutOfMemory):
            CachingAllocator(limit_bytes=20 * MIB - 1).allocate(2 * MIB)
        assert CachingAllocator(limit_bytes=20 * MIB).allocate(2 * MIB)

    def test_empty_cache_counts_no_retry(self) -> None:  # emptyCache
        allocator = CachingAllocator()
        cached(allocator, 12 * MIB, 1)
        allocator.empty_cache()
        assert (allocator.stats().reserved_bytes, allocator.stats().retries) == (0, 0)

    def test_a_negative_limit_is_refused(self) -> None:
        with pytest.raises(ValueError, match="limit_bytes is -1"):
            CachingAllocator(limit_bytes=-1)


class TestMaxSplitSize:
    settings = AllocatorSettings(max_split_size_bytes=32 * MIB)

    def test_an_ordinary_request_does_not_take_an_oversize_block(self) -> None:  # get_free_block
        allocator = CachingAllocator(settings=self.settings)
        cached(allocator, 40 * MIB)
        allocator.allocate(16 * MIB)
        assert allocator.stats().reserved_bytes == 56 * MIB

    def test_an_oversize_block_is_not_split(self) -> None:  # should_split
        allocator = CachingAllocator(settings=self.settings)
        cached(allocator, 40 * MIB)
        allocator.allocate(33 * MIB)
        assert allocator.stats().allocated_bytes == 40 * MIB

    @pytest.mark.parametrize(
        ("requested", "reserved_mib"),
        [(40 * MIB, 100), (40 * MIB + 512, 60)],  # the cached 60 MiB are 20 MiB larger, and 512 bytes less than that
    )
    def test_an_oversize_request_takes_only_a_close_block(self, requested: int, reserved_mib: int) -> None:
        allocator = CachingAllocator(settings=self.settings)  # get_free_block: kLargeBuffer
        cached(allocator, 60 * MIB)
        allocator.allocate(requested)
        assert allocator.stats().reserved_bytes == reserved_mib * MIB

    def test_an_oversize_block_is_released_before_all_others(self) -> None:  # release_available_cached_blocks
        allocator = CachingAllocator(100 * MIB, self.settings)
        cached(allocator, 60 * MIB, 20 * MIB)
        allocator.allocate(34 * MIB)
        stats = allocator.stats()
        assert (stats.retries, stats.reserved_bytes) == (0, 54 * MIB)

    def test_several_oversize_blocks_are_released_from_the_largest_down(self) -> None:
        allocator = CachingAllocator(110 * MIB, self.settings)
        cached(allocator, 34 * MIB, 36 * MIB, 32 * MIB)
        allocator.allocate(68 * MIB)  # 36 + 34 suffice, 32 stay
        stats = allocator.stats()
        assert (stats.retries, stats.reserved_bytes) == (0, 100 * MIB)

    def test_too_few_oversize_blocks_release_the_whole_cache(self) -> None:
        allocator = CachingAllocator(100 * MIB, self.settings)
        cached(allocator, 34 * MIB, 20 * MIB)
        allocator.allocate(72 * MIB)  # would fit beside the 20, but PyTorch compares 72 with the 34 it released
        stats = allocator.stats()
        assert (stats.retries, stats.reserved_bytes) == (1, 72 * MIB)

    def test_a_max_split_size_below_20_mib_is_refused(self) -> None:  # parseMaxSplitSize
        with pytest.raises(ValueError, match="20 MiB"):
            AllocatorSettings(max_split_size_bytes=20 * MIB - 1)


class TestRecordStream:
    def test_a_freed_block_stays_active_until_its_event_is_noticed(self) -> None:  # insert_events, process_events
        allocator = CachingAllocator()
        handle = allocator.allocate(12 * MIB)
        allocator.record_stream(handle, 1)
        allocator.free(handle)
        assert (allocator.stats().allocated_bytes, allocator.stats().active_bytes) == (0, 12 * MIB)
        assert allocator.allocate(12 * MIB) != handle
        allocator.synchronize(1)
        assert allocator.stats().active_bytes == 24 * MIB  # nobody looked yet
        assert allocator.allocate(12 * MIB) == handle
        assert allocator.stats().reserved_bytes == 24 * MIB

    def test_the_last_of_several_streams_decides(self) -> None:
        allocator = CachingAllocator()
        handle = allocator.allocate(12 * MIB)
        for stream in (1, 2, 2):
            allocator.record_stream(handle, stream)
        allocator.free(handle)
        allocator.synchronize(2)
        assert allocator.allocate(12 * MIB) != handle
        allocator.synchronize()
        assert allocator.allocate(12 * MIB) == handle

    def test_the_stream_of_the_block_itself_does_not_count(self) -> None:  # recordStream
        allocator = CachingAllocator()
        handle = allocator.allocate(12 * MIB, stream=3)
        allocator.record_stream(handle, 3)
        allocator.free(handle)
        assert allocator.stats().active_bytes == 0

    def test_a_block_in_use_elsewhere_does_not_join_its_neighbour(self) -> None:  # try_merge_blocks
        allocator = CachingAllocator()
        first, second = filled(allocator, MIB, MIB)
        allocator.record_stream(first, 1)
        allocator.free(first)
        allocator.free(second)
        assert allocator.stats().largest_free_block_bytes == MIB
        allocator.synchronize()
        allocator.empty_cache()
        assert allocator.stats().reserved_bytes == 0

    def test_a_retry_waits_for_all_streams(self) -> None:  # synchronize_and_free_events
        allocator = CachingAllocator(limit_bytes=12 * MIB)
        handle = allocator.allocate(12 * MIB)
        allocator.record_stream(handle, 1)
        allocator.free(handle)
        allocator.allocate(12 * MIB)
        assert (allocator.stats().retries, allocator.stats().reserved_bytes) == (1, 12 * MIB)
