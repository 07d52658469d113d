"""`CachingAllocator`: serves requests from cached blocks, and from the device if the cache cannot."""

from __future__ import annotations

from memtune.allocator import expandable
from memtune.allocator.blocks import (
    MIN_BLOCK_BYTES,
    SEGMENT_ROUNDING_BYTES,
    SMALL_REQUEST_BYTES,
    AllocatorSettings,
    Block,
    Pool,
    merge_free,
    segment_bytes,
)
from memtune.allocator.counters import Counters, Stats
from memtune.allocator.device import DeviceModel
from memtune.allocator.snapshot import SegmentInfo, segments_of
from memtune.units import gib

NULL_HANDLE = 0


class AllocatorOutOfMemory(Exception):  # noqa: N818 - what happened on the device, not an error in the program
    """A request failed after everything that can be released was released."""

    def __init__(self, requested_bytes: int, limit_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
        self.requested_bytes = requested_bytes
        self.limit_bytes = limit_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        super().__init__(
            f"out of memory: {requested_bytes} bytes were requested; of {gib(limit_bytes, 2)}, "
            f"{gib(allocated_bytes, 2)} are allocated and {gib(reserved_bytes - allocated_bytes, 2)} are cached in "
            "pieces that cannot serve it; choose a plan that needs less, or a device with more memory"
        )


class CachingAllocator:
    """One device's allocator.

    ``limit_bytes`` is the device's memory; None means no limit. It stands for the point at which cudaMalloc fails, not
    for set_per_process_memory_fraction, which limits expandable segments by the rounded request instead of by the pages
    it needs. A handle is the address of the block, 0 for a request of no bytes.

    ``synchronize`` marks the GPU's progress: until then, a freed block that another stream uses stays active.
    """

    def __init__(self, limit_bytes: int | None = None, settings: AllocatorSettings | None = None) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ValueError(f"limit_bytes is {limit_bytes}; give 0 or more, or None for no limit")
        self._settings = settings or AllocatorSettings()
        self._counters = Counters()
        self._device = DeviceModel(limit_bytes, self._counters, self._settings.oldest_first)
        self._small_pools: dict[int, Pool] = {}
        self._large_pools: dict[int, Pool] = {}
        self._live: dict[int, Block] = {}
        self._unfinished: dict[int, list[Block]] = {}  # by stream: freed blocks whose event is not reached yet
        self._finished: list[Block] = []  # one entry per event that was reached and not yet noticed

    def allocate(self, size_bytes: int, stream: int = 0) -> int:
        """Allocate a block on a stream and return its handle; raise AllocatorOutOfMemory if there is none (malloc)."""
        if size_bytes <= 0:
            if size_bytes < 0:
                raise ValueError(f"size_bytes is {size_bytes}; a request has 0 bytes or more")
            return NULL_HANDLE
        if self._finished:
            self._notice_finished()
        size = (size_bytes + MIN_BLOCK_BYTES - 1) & -MIN_BLOCK_BYTES
        is_small = size <= SMALL_REQUEST_BYTES
        pool = (self._small_pools if is_small else self._large_pools).get(stream) or self._new_pool(stream, is_small)
        block = pool.take(size) or self._grow(pool, size, size_bytes)
        if block.size != size or block.preceding is not None or block.following is not None:
            self._fit(block, size)
        block.state = "allocated"
        block.requested = size_bytes
        self._counters.take(size_bytes, block.size)
        handle = block.address
        self._live[handle] = block
        return handle

    def free(self, handle: int) -> None:
        """Free a block, at once unless another stream still uses it."""
        if handle == NULL_HANDLE:
            return
        block = self._live.pop(handle, None)
        if block is None:
            raise _unknown(handle)
        self._counters.allocated -= block.size
        if block.streams is None:
            self._cache(block)
            return
        block.state = "pending"
        block.events = len(block.streams)
        for stream in block.streams:
            self._unfinished.setdefault(stream, []).append(block)
        block.streams = None

    def record_stream(self, handle: int, stream: int) -> None:
        """Record that another stream uses the block; not needed for its own stream (recordStream)."""
        if handle == NULL_HANDLE:
            return
        block = self._live.get(handle)
        if block is None:
            raise _unknown(handle)
        if stream != block.pool.stream:
            block.streams = (block.streams or set()) | {stream}

    def synchronize(self, stream: int | None = None) -> None:
        """One stream, or all, completed everything recorded so far.

        The allocator notices at the next allocation (process_events): blocks stay active until then.
        """
        reached = list(self._unfinished) if stream is None else [stream]
        for each in reached:
            self._finished += self._unfinished.pop(each, [])

    def empty_cache(self) -> None:
        """Return all unused segments to the device (release_cached_blocks).

        A segment that is partly in use cannot be returned, but the free pages of an expandable one can.
        """
        self.synchronize()
        self._notice_finished()
        for pool in self._pools():
            self._release(pool)

    def set_limit(self, limit_bytes: int) -> None:
        """Change the device's memory. Reserved memory stays (set_per_process_memory_fraction)."""
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes is {limit_bytes}; give 0 or more")
        self._device.limit_bytes = limit_bytes

    def reset_peak(self) -> None:
        self._counters.reset_peak()

    def stats(self) -> Stats:
        return self._counters.stats(max((pool.largest_bytes for pool in self._pools()), default=0))

    def snapshot(self) -> list[SegmentInfo]:
        """Every segment with memory and its blocks, by address, as in torch.cuda.memory_snapshot."""
        blocks = [*self._live.values(), *self._finished]
        blocks += [block for pending in self._unfinished.values() for block in pending]
        blocks += [block for pool in self._pools() for block in pool.blocks() + pool.unmapped]
        return segments_of(blocks)

    def _pools(self) -> list[Pool]:
        return [*self._small_pools.values(), *self._large_pools.values()]

    def _new_pool(self, stream: int, is_small: bool) -> Pool:
        pool = Pool(stream, is_small, self._settings)
        (self._small_pools if is_small else self._large_pools)[stream] = pool
        return pool

    def _fit(self, block: Block, size: int) -> None:
        """Split off what the request does not need, if the rest is worth keeping (alloc_found_block)."""
        pool = block.pool
        change = 0 if block.preceding is None and block.following is None else -block.size
        rest_bytes = block.size - size
        if rest_bytes >= pool.min_rest_bytes and size < pool.split_below_bytes:
            pool.add(block.cut(size, "free"))
            change += rest_bytes
        if change and not pool.is_expandable:
            self._counters.change_inactive_split(change)

    def _cache(self, block: Block) -> None:
        """Return an unused block to its pool (free_block)."""
        pool = block.pool
        counters = self._counters
        counters.active -= block.size
        counters.requested -= block.requested
        if block.preceding is None and block.following is None:
            pool.add(block)
            return
        change = -merge_free(block)
        pool.add(block)
        if pool.is_expandable:
            return
        if not block.is_whole_segment:
            change += block.size
        if change:
            counters.change_inactive_split(change)

    def _notice_finished(self) -> None:
        finished, self._finished = self._finished, []
        for block in finished:
            block.events -= 1
            if block.events == 0:
                self._cache(block)

    def _grow(self, pool: Pool, size: int, size_bytes: int) -> Block:
        """Request device memory; if refused, release cached blocks and try again (the fallbacks of malloc)."""
        block = self._ask_device(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._ask_device(pool, size)
        if block is None:
            self.empty_cache()
            self._counters.retries += 1
            block = self._ask_device(pool, size)
        if block is None:
            counters = self._counters
            counters.ooms += 1
            raise AllocatorOutOfMemory(size_bytes, self._device.limit_bytes, counters.allocated, counters.reserved)
        return block

    def _ask_device(self, pool: Pool, size: int) -> Block | None:
        if pool.is_expandable:
            return expandable.grow(pool, size, self._device)
        segment = segment_bytes(size)
        if not self._device.give(segment):
            return None
        return Block(self._device.addresses(segment, SEGMENT_ROUNDING_BYTES), segment, pool, "free")

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Release oversize blocks of the request's own pool before everything else (release_available_cached_blocks).

        They are released even if they do not suffice. Expandable segments have none to release.
        """
        if self._settings.max_split_size_bytes is None or pool.is_expandable:
            return False
        wanted = max(size, pool.oversize_bytes)
        released = 0
        for block in pool.oversize(wanted):
            released += block.size
            self._release_segment(block)
        return released >= wanted

    def _release(self, pool: Pool) -> None:
        if pool.is_expandable:
            expandable.release(pool, self._device)
            return
        for block in pool.blocks():
            if block.is_whole_segment:
                self._release_segment(block)

    def _release_segment(self, block: Block) -> None:
        block.pool.remove(block)
        self._device.take_back(block.size)


def _unknown(handle: int) -> ValueError:
    return ValueError(f"handle {handle} is not allocated: it was freed before or never handed out; free it only once")
