"""Blocks of device memory, and the pools of free blocks."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Literal

from memtune.units import MIB

# The constants of CUDACachingAllocator.cpp (kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kLargeBuffer,
# kRoundLarge). kLargeBuffer is also the default of max_non_split_rounding_mb.
MIN_BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
SEGMENT_ROUNDING_BYTES = 2 * MIB

# More than any device has. Stands for "no limit", so that the hot path only compares numbers.
UNLIMITED_BYTES = 1 << 62

# A free block is found by one integer, size above address: comparing integers makes the search fast.
_ADDRESS_BITS = 64


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings that decide block placement: a part of PYTORCH_ALLOC_CONF, and a rule that PyTorch has changed.

    ``oldest_first`` selects among free blocks of the same size: from torch 2.12 on the one in the older segment
    (pytorch/pytorch#183591), before that the one at the lower address.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    oldest_first: bool = False

    def __post_init__(self) -> None:
        if self.max_split_size_bytes is not None and self.max_split_size_bytes < LARGE_SEGMENT_BYTES:
            raise ValueError(
                f"max_split_size_bytes is {self.max_split_size_bytes}; PyTorch takes no less than "
                f"{LARGE_SEGMENT_BYTES} (20 MiB): give at least that, or None for no limit"
            )


# free: cached in its pool. pending: freed, but another stream may still use it. unmapped: address space of an
# expandable segment without memory.
State = Literal["free", "allocated", "pending", "unmapped"]


class Block:
    """A range of addresses within a segment, linked to its neighbours in that segment."""

    __slots__ = ("address", "events", "following", "pool", "preceding", "requested", "size", "state", "streams")

    def __init__(self, address: int, size: int, pool: Pool, state: State) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.state = state
        self.requested = 0
        self.preceding: Block | None = None
        self.following: Block | None = None
        self.streams: set[int] | None = None  # other streams that use the block
        self.events = 0  # streams that have not finished with the freed block

    @property
    def is_whole_segment(self) -> bool:
        return self.preceding is None and self.following is None

    def cut(self, size: int, state: State) -> Block:
        """Keep the first ``size`` bytes, and return the rest as a new block of that state."""
        rest = Block(self.address + size, self.size - size, self.pool, state)
        self.size = size
        following = self.following
        rest.preceding = self
        rest.following = following
        if following is not None:
            following.preceding = rest
        self.following = rest
        return rest

    def absorb_preceding(self, other: Block) -> None:
        self.address = other.address
        self.size += other.size
        self.preceding = other.preceding
        if self.preceding is not None:
            self.preceding.following = self

    def absorb_following(self, other: Block) -> None:
        self.size += other.size
        self.following = other.following
        if self.following is not None:
            self.following.preceding = self


class Pool:
    """The free blocks of one stream, small or large, ordered by size and then by address (BlockComparatorSize)."""

    def __init__(self, stream: int, is_small: bool, settings: AllocatorSettings) -> None:
        self.stream = stream
        self.is_small = is_small
        self.is_expandable = settings.expandable_segments
        self.oversize_bytes = settings.max_split_size_bytes or UNLIMITED_BYTES
        # should_split: in the small pool and in expandable segments any rest of 512 bytes is kept, in the large pool it
        # must exceed 1 MiB, and oversize requests are never split. Sizes are multiples of 512.
        keeps_any_rest = is_small or self.is_expandable
        self.min_rest_bytes = MIN_BLOCK_BYTES if keeps_any_rest else SMALL_REQUEST_BYTES + MIN_BLOCK_BYTES
        self.split_below_bytes = UNLIMITED_BYTES if keeps_any_rest else self.oversize_bytes
        self.unmapped: list[Block] = []  # by address
        self._is_simple = not self.is_expandable and self.oversize_bytes == UNLIMITED_BYTES
        self._keys: list[int] = []
        self._by_key: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        block.state = "free"
        key = block.size << _ADDRESS_BITS | block.address
        insort(self._keys, key)
        self._by_key[key] = block

    def remove(self, block: Block) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        del self._by_key[key], self._keys[bisect_left(self._keys, key)]

    def take(self, size: int) -> Block | None:
        """Remove and return the best fitting block, or None (get_free_block)."""
        keys = self._keys
        index = bisect_left(keys, size << _ADDRESS_BITS)
        if index == len(keys):
            return None
        if self._is_simple:
            return self._by_key.pop(keys.pop(index))
        if self.is_expandable:
            index = self._least_expandable(index)
        block = self._by_key[keys[index]]
        if block.size >= self.oversize_bytes and not self._is_close(block, size):
            return None
        del self._by_key[keys.pop(index)]
        return block

    def _is_close(self, oversize: Block, size: int) -> bool:
        """An oversize block serves only oversize requests, and only those less than 20 MiB smaller."""
        return size >= self.oversize_bytes and oversize.size < size + LARGE_SEGMENT_BYTES

    def _least_expandable(self, index: int) -> int:
        """Order a block that can grow by the size it can grow to, so that inner gaps are filled first."""
        keys, by_key = self._keys, self._by_key
        room = _expanded_bytes(by_key[keys[index]])
        while index + 1 < len(keys) and (following := _expanded_bytes(by_key[keys[index + 1]])) < room:
            index, room = index + 1, following
        return index

    def blocks(self) -> list[Block]:
        return [self._by_key[key] for key in self._keys]

    def oversize(self, wanted: int) -> list[Block]:
        """Oversize blocks to release: the closest in size, or the largest first (release_available_cached_blocks)."""
        index = bisect_left(self._keys, wanted << _ADDRESS_BITS)
        if index < len(self._keys):
            return [self._by_key[self._keys[index]]]
        chosen: list[Block] = []
        total = 0
        for block in reversed(self.blocks()):
            if total >= wanted or block.size < self.oversize_bytes:
                break
            chosen.append(block)
            total += block.size
        return chosen

    @property
    def largest_bytes(self) -> int:
        return self._keys[-1] >> _ADDRESS_BITS if self._keys else 0


def merge_free(block: Block) -> int:
    """Join a block with its free neighbours; return their bytes (try_merge_blocks)."""
    pool = block.pool
    size = block.size
    preceding, following = block.preceding, block.following
    if preceding is not None and preceding.state == "free":
        pool.remove(preceding)
        block.absorb_preceding(preceding)
    if following is not None and following.state == "free":
        pool.remove(following)
        block.absorb_following(following)
    return block.size - size


def segment_bytes(size: int) -> int:
    """The size of the segment requested from the device for ``size`` bytes (get_allocation_size)."""
    if size <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(size, SEGMENT_ROUNDING_BYTES)


def round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _expanded_bytes(block: Block) -> int:
    following = block.following
    if following is not None and following.state == "unmapped":
        return block.size + following.size
    return block.size
