"""Replays a trace of allocations: its peaks, and how much memory it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from memtune.allocator.blocks import SEGMENT_ROUNDING_BYTES, AllocatorSettings
from memtune.allocator.caching import AllocatorOutOfMemory, CachingAllocator
from memtune.allocator.counters import Stats

Action = Literal["alloc", "free", "record_stream", "synchronize_stream", "synchronize", "empty_cache"]


class Event(NamedTuple):
    """One line of a trace. ``tensor`` is the trace's own number for a block, which may be reused once freed."""

    action: Action
    tensor: int = 0
    size_bytes: int = 0
    stream: int = 0


def replay(trace: Iterable[Event], limit_bytes: int | None = None, settings: AllocatorSettings | None = None) -> Stats:
    """The allocator's counters after the trace, or at the request that ran out of memory (then ``ooms`` is 1)."""
    allocator = CachingAllocator(limit_bytes, settings)
    handles: dict[int, int] = {}
    try:
        for event in trace:
            action, tensor, size_bytes, stream = event
            if action == "alloc" and tensor not in handles:
                handles[tensor] = allocator.allocate(size_bytes, stream)
            elif action == "free" and tensor in handles:
                allocator.free(handles.pop(tensor))
            else:
                _replay_rare(allocator, event, handles)
    except AllocatorOutOfMemory:
        pass  # the counters say so
    return allocator.stats()


def _replay_rare(allocator: CachingAllocator, event: Event, handles: dict[int, int]) -> None:
    action, tensor, _, stream = event
    if action == "synchronize":
        allocator.synchronize()
    elif action == "synchronize_stream":
        allocator.synchronize(stream)
    elif action == "empty_cache":
        allocator.empty_cache()
    elif action == "record_stream" and tensor in handles:
        allocator.record_stream(handles[tensor], stream)
    else:
        state = "is" if tensor in handles else "is not"
        raise ValueError(
            f"the trace cannot go on with {event}: tensor {tensor} {state} allocated there; mend the trace"
        )


def required_bytes(trace: Sequence[Event], settings: AllocatorSettings | None = None, precision: float = 0.0) -> int:
    """The smallest limit under which the trace runs without a retry, or one above it by ``precision`` of the peak.

    Without max_split_size nothing is released before a retry is counted, so a run without retries equals the run
    without a limit, and its peak is the answer. With max_split_size oversize blocks are released first, so less can
    suffice; with expandable segments the limit also sets the address space of a segment, so in rare cases the peak does
    not suffice.
    """
    settings = settings or AllocatorSettings()
    unlimited = replay(trace, None, settings)
    peak = unlimited.peak_reserved_bytes
    releases_early = settings.max_split_size_bytes is not None
    if not releases_early and not settings.expandable_segments:
        return peak
    floor = unlimited.peak_active_bytes if releases_early else peak
    return _bisect(floor, peak, lambda limit: replay(trace, limit, settings).retries == 0, int(peak * precision))


def surviving_bytes(trace: Sequence[Event], settings: AllocatorSettings | None = None) -> int:
    """The smallest limit under which the trace completes, even slowly: with retries, but without out-of-memory."""
    peak = replay(trace, None, settings).peak_reserved_bytes
    return _bisect(0, peak, lambda limit: replay(trace, limit, settings).ooms == 0)


def _bisect(floor: int, enough: int, suffices: Callable[[int], bool], apart: int = 0) -> int:
    """A limit of at least ``floor`` that suffices, while 2 MiB (or ``apart``) less does not or is below the floor.

    Segments are multiples of 2 MiB, so nothing lies between. The search starts at ``enough``, which is doubled until it
    suffices.
    """
    step = SEGMENT_ROUNDING_BYTES * max(apart // SEGMENT_ROUNDING_BYTES, 1)
    low, high = floor // step - 1, enough // step
    while not suffices(high * step):
        low, high = high, max(2 * high, 1)
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle * step):
            high = middle
        else:
            low = middle
    return high * step
