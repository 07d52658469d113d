"""Invariants after any sequence of calls: no overlap, no lost bytes, sums that agree, nothing left at the end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from memtune.allocator import (
    AllocatorOutOfMemory,
    AllocatorSettings,
    BlockInfo,
    CachingAllocator,
    Event,
    SegmentInfo,
    replay,
    required_bytes,
    surviving_bytes,
)
from memtune.units import MIB

STREAMS = st.integers(0, 2)
SIZES_BYTES = st.one_of(
    st.integers(0, 4096),
    st.integers(MIB - 1024, MIB + 1024),
    st.integers(1, 24).map(lambda mib: mib * MIB),
    st.integers(MIB, 60 * MIB),
)
SETTINGS = st.sampled_from(
    [
        AllocatorSettings(),
        AllocatorSettings(expandable_segments=True),
        AllocatorSettings(max_split_size_bytes=24 * MIB),
        AllocatorSettings(expandable_segments=True, max_split_size_bytes=24 * MIB),
    ]
)
LIMITS_BYTES = st.one_of(st.none(), st.integers(0, 200 * MIB))
# The action, the live block, the bytes and the stream. Allocations are the most frequent.
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["alloc"] * 6 + ["free"] * 4 + ["record_stream", "synchronize_stream", "empty_cache"]),
        st.integers(0, 50),
        SIZES_BYTES,
        STREAMS,
    ),
    max_size=40,
)
Calls = list[tuple[str, int, int, int]]


def run(allocator: CachingAllocator, calls: Calls) -> Iterator[dict[int, int]]:
    """Make the calls; after each, yield the live handles with their requested bytes."""
    live: dict[int, int] = {}
    for action, choice, size_bytes, stream in calls:
        handle = sorted(live)[choice % len(live)] if live else 0
        if action == "alloc":
            handle = allocate_or_null(allocator, size_bytes, stream)
            if handle:
                assert handle not in live
                live[handle] = size_bytes
        elif action == "free":
            allocator.free(handle)
            live.pop(handle, None)
        elif action == "record_stream":
            allocator.record_stream(handle, stream)
        elif action == "synchronize_stream":
            allocator.synchronize(stream)
        else:
            allocator.empty_cache()
        yield live


def allocate_or_null(allocator: CachingAllocator, size_bytes: int, stream: int) -> int:
    try:
        return allocator.allocate(size_bytes, stream)
    except AllocatorOutOfMemory:
        return 0


def check_segment(segment: SegmentInfo) -> None:
    """Check that blocks are contiguous and free neighbours are joined."""
    assert segment.address == segment.blocks[0].address
    for block in segment.blocks:
        assert block.size_bytes > 0
        assert block.size_bytes % 512 == 0
    for before, after in pairwise(segment.blocks):
        assert before.address + before.size_bytes == after.address
        assert before.state != after.state or before.state in ("allocated", "pending")


def check_extent(segment: SegmentInfo, is_expandable: bool) -> None:
    """Check that a segment's blocks add up to what the device gave."""
    total = sum(block.size_bytes for block in segment.blocks)
    if not is_expandable:
        assert (total == 2 * MIB) if segment.is_small else (total >= 10 * MIB and total % (2 * MIB) == 0)
        return
    page = 2 * MIB if segment.is_small else 20 * MIB
    assert segment.address % page == total % page == 0
    for block in segment.blocks:
        assert block.state != "unmapped" or block.address % page == block.size_bytes % page == 0


def check(allocator: CachingAllocator, live: dict[int, int], limit_bytes: int | None, is_expandable: bool) -> None:
    segments = allocator.snapshot()
    for segment in segments:
        check_segment(segment)
        check_extent(segment, is_expandable)
    for lower, upper in pairwise(segments):
        assert lower.blocks[-1].address + lower.blocks[-1].size_bytes <= upper.address
    check_sums(allocator, segments, limit_bytes, is_expandable)
    allocated = [block for segment in segments for block in segment.blocks if block.state == "allocated"]
    assert {block.address: block.requested_bytes for block in allocated} == live
    assert all(block.size_bytes >= block.requested_bytes for block in allocated)


def check_sums(
    allocator: CachingAllocator, segments: list[SegmentInfo], limit_bytes: int | None, is_expandable: bool
) -> None:
    """Check that the counters equal the sums of the blocks."""
    blocks = [block for segment in segments for block in segment.blocks]
    stats = allocator.stats()
    free = [block.size_bytes for block in blocks if block.state == "free"]
    split = [segment for segment in segments if len(segment.blocks) > 1 and not is_expandable]
    assert stats.allocated_bytes == total_of(blocks, "allocated")
    assert stats.active_bytes == total_of(blocks, "allocated", "pending")
    assert stats.reserved_bytes == total_of(blocks, "allocated", "pending", "free")
    assert stats.requested_bytes == sum(block.requested_bytes for block in blocks)
    assert stats.inactive_split_bytes == sum(total_of(segment.blocks, "free") for segment in split)
    assert stats.largest_free_block_bytes == max(free, default=0)
    assert stats.allocated_bytes <= stats.active_bytes <= stats.reserved_bytes
    assert stats.requested_bytes <= stats.active_bytes
    assert limit_bytes is None or stats.peak_reserved_bytes <= limit_bytes
    for name in ("requested", "allocated", "active", "reserved", "inactive_split"):
        assert getattr(stats, f"peak_{name}_bytes") >= getattr(stats, f"{name}_bytes")


def total_of(blocks: tuple[BlockInfo, ...] | list[BlockInfo], *states: str) -> int:
    return sum(block.size_bytes for block in blocks if block.state in states)


@settings(max_examples=50)
@given(CALLS, LIMITS_BYTES, SETTINGS)
def test_blocks_never_overlap_and_sums_agree(calls: Calls, limit_bytes: int | None, chosen: AllocatorSettings) -> None:
    allocator = CachingAllocator(limit_bytes, chosen)
    for live in run(allocator, calls):
        check(allocator, live, limit_bytes, chosen.expandable_segments)


@settings(max_examples=40)
@given(CALLS, LIMITS_BYTES, SETTINGS)
def test_freeing_all_and_emptying_the_cache_returns_to_zero(
    calls: Calls, limit_bytes: int | None, chosen: AllocatorSettings
) -> None:
    allocator = CachingAllocator(limit_bytes, chosen)
    states = list(run(allocator, calls))
    for handle in states[-1] if states else []:
        allocator.free(handle)
    allocator.empty_cache()
    allocator.reset_peak()
    stats = allocator.stats()
    assert allocator.snapshot() == []
    assert stats.peak_requested_bytes == stats.peak_allocated_bytes == stats.peak_active_bytes == 0
    assert stats.peak_reserved_bytes == stats.peak_inactive_split_bytes == stats.largest_free_block_bytes == 0


@settings(max_examples=30)
@given(CALLS, LIMITS_BYTES, SETTINGS)
def test_equal_calls_give_equal_addresses_and_counters(
    calls: Calls, limit_bytes: int | None, chosen: AllocatorSettings
) -> None:
    results = []
    for _ in range(2):
        allocator = CachingAllocator(limit_bytes, chosen)
        steps = [sorted(live) for live in run(allocator, calls)]
        results.append((steps, allocator.snapshot(), allocator.stats()))
    assert results[0] == results[1]


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """Draw valid traces: only allocated blocks are freed or recorded."""
    trace: list[Event] = []
    live: list[int] = []
    for number, (action, choice, size_bytes, stream) in enumerate(draw(CALLS)):
        if action == "alloc":
            trace.append(Event("alloc", number, size_bytes, stream))
            live.append(number)
        elif action == "free" and live:
            trace.append(Event("free", live.pop(choice % len(live))))
        elif action == "record_stream" and live:
            trace.append(Event("record_stream", live[choice % len(live)], stream=stream))
        elif action == "synchronize_stream":
            trace.append(Event("synchronize_stream", stream=stream))
        elif action == "empty_cache":
            trace.append(Event("empty_cache"))
    return trace


@settings(max_examples=30)
@given(traces(), SETTINGS)
def test_required_bytes_is_where_retries_begin(trace: list[Event], chosen: AllocatorSettings) -> None:
    required = required_bytes(trace, chosen)
    assert replay(trace, required, chosen).retries == 0
    if required:
        assert replay(trace, required - 2 * MIB, chosen).retries > 0


@settings(max_examples=40)
@given(traces(), SETTINGS)
def test_surviving_bytes_is_where_running_out_begins(trace: list[Event], chosen: AllocatorSettings) -> None:
    surviving = surviving_bytes(trace, chosen)
    assert replay(trace, surviving, chosen).ooms == 0
    if surviving:
        assert replay(trace, surviving - 2 * MIB, chosen).ooms == 1
