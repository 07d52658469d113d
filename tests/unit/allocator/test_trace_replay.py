"""Replayed traces and the memory that they need."""

from __future__ import annotations

import pytest

from memtune.allocator import AllocatorSettings, Event, replay, required_bytes, surviving_bytes
from memtune.units import MIB

EXPANDABLE = AllocatorSettings(expandable_segments=True)


def step(first_tensor: int, count: int, size_bytes: int) -> list[Event]:
    """Return ``count`` tensors of one size, all alive together, then all freed."""
    tensors = range(first_tensor, first_tensor + count)
    return [Event("alloc", tensor, size_bytes) for tensor in tensors] + [Event("free", tensor) for tensor in tensors]


# The case for expandable segments: the second batch is slightly larger than the first, so none of the first batch's
# segments can serve it.
GROWING_BATCH = step(0, 4, 20 * MIB) + step(4, 4, 22 * MIB)


class TestGrowingBatch:
    def test_without_expandable_segments_both_batches_are_reserved(self) -> None:
        stats = replay(GROWING_BATCH)
        assert stats.peak_active_bytes == 88 * MIB
        assert stats.peak_reserved_bytes == (4 * 20 + 4 * 22) * MIB
        assert stats.fragmentation == pytest.approx(1 - 88 / 168)

    def test_with_expandable_segments_only_the_larger_batch_is_reserved(self) -> None:
        stats = replay(GROWING_BATCH, settings=EXPANDABLE)
        assert stats.peak_active_bytes == 88 * MIB
        assert stats.peak_reserved_bytes == 100 * MIB  # 88 in pages of 20
        assert stats.fragmentation == pytest.approx(0.12)

    def test_under_a_limit_retries_come_before_the_out_of_memory(self) -> None:
        slow = replay(GROWING_BATCH, 100 * MIB)
        assert (slow.retries, slow.ooms, slow.reserved_bytes) == (1, 0, 88 * MIB)
        dead = replay(GROWING_BATCH, 86 * MIB)
        assert (dead.ooms, dead.allocated_bytes) == (1, 66 * MIB)

    def test_required_and_surviving_bytes(self) -> None:
        assert required_bytes(GROWING_BATCH) == 168 * MIB
        assert surviving_bytes(GROWING_BATCH) == 88 * MIB
        assert required_bytes(GROWING_BATCH, EXPANDABLE) == 100 * MIB
        assert surviving_bytes(GROWING_BATCH, EXPANDABLE) == 100 * MIB


def test_pinned_fragments_make_a_run_die_with_half_of_the_memory_free() -> None:
    # Four segments of 20 MiB; of each, the 2 MiB in the middle of nowhere stay. 72 MiB are free, none of it can go.
    trace = [Event("alloc", tensor, (9 if tensor % 3 else 2) * MIB) for tensor in range(12)]
    trace += [Event("free", tensor) for tensor in range(12) if tensor % 3]
    trace += [Event("alloc", 99, 30 * MIB)]
    dead = replay(trace, 100 * MIB)
    assert (dead.ooms, dead.allocated_bytes, dead.reserved_bytes) == (1, 8 * MIB, 80 * MIB)
    assert dead.inactive_split_bytes == 72 * MIB
    # Expandable: 80 MiB are mapped without a gap; 30 more need two new pages at the end, where 18 MiB are free.
    alive = replay(trace, 100 * MIB, EXPANDABLE)
    assert (alive.ooms, alive.retries, alive.reserved_bytes) == (0, 0, 100 * MIB)


def test_oversize_blocks_are_released_early_so_less_than_the_peak_is_required() -> None:
    trace = step(0, 1, 60 * MIB) + step(1, 1, 34 * MIB)
    settings = AllocatorSettings(max_split_size_bytes=32 * MIB)
    assert replay(trace, settings=settings).peak_reserved_bytes == 94 * MIB
    assert required_bytes(trace, settings) == 60 * MIB


def test_an_exhausted_address_space_can_require_more_than_the_peak() -> None:
    # Without a limit: pages 0 and 2 are unmapped, and 45 MiB start in the free 10 MiB at the end of page 3: two new
    # pages, 80 MiB mapped. With a limit of 80 MiB the segment has five pages, so a second one begins with three pages.
    trace = [
        Event("alloc", 0, 20 * MIB),
        Event("alloc", 1, 20 * MIB),
        Event("alloc", 2, 20 * MIB),
    ]
    trace += [
        Event("alloc", 3, 10 * MIB),
        Event("free", 0),
        Event("free", 2),
        Event("empty_cache"),
    ]
    trace += [Event("alloc", 4, 45 * MIB)]
    assert replay(trace, settings=EXPANDABLE).peak_reserved_bytes == 80 * MIB
    assert replay(trace, 80 * MIB, EXPANDABLE).ooms == 1
    assert required_bytes(trace, EXPANDABLE) > 80 * MIB
    assert replay(trace, required_bytes(trace, EXPANDABLE), EXPANDABLE).retries == 0


def test_an_empty_trace_requires_nothing() -> None:
    for settings in (None, EXPANDABLE, AllocatorSettings(max_split_size_bytes=32 * MIB)):
        assert required_bytes([], settings) == 0
        assert surviving_bytes([], settings) == 0


def test_streams_in_a_trace() -> None:
    used_elsewhere = [
        Event("alloc", 0, 12 * MIB),
        Event("record_stream", 0, stream=1),
        Event("free", 0),
    ]
    again = [Event("alloc", 1, 12 * MIB)]
    assert replay(used_elsewhere + again).reserved_bytes == 24 * MIB
    for wait in (Event("synchronize"), Event("synchronize_stream", stream=1)):
        assert replay([*used_elsewhere, wait, *again]).reserved_bytes == 12 * MIB
    assert replay([*used_elsewhere, Event("empty_cache")]).reserved_bytes == 0


@pytest.mark.parametrize(
    ("trace", "complaint"),
    [
        ([Event("free", 7)], "tensor 7 is not allocated"),
        ([Event("record_stream", 7, stream=1)], "tensor 7 is not allocated"),
        ([Event("alloc", 7, 1), Event("alloc", 7, 1)], "tensor 7 is allocated"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(trace: list[Event], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replay(trace)
