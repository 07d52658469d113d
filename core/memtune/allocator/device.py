"""The device behind the allocator: provides memory up to a limit, as cudaMalloc and cuMemCreate do."""

from __future__ import annotations

from memtune.allocator.blocks import UNLIMITED_BYTES
from memtune.allocator.counters import Counters

# Room for thousands of expandable segments, each with the address space of a device without a limit.
_HIGHEST_ADDRESS, _LOWEST_ADDRESS = 1 << 62, 1 << 20


class DeviceModel:
    """Counts the memory it provides, and assigns addresses.

    Addresses are never reused. Where the driver places a segment is not published; it decides only which of two free
    blocks of the same size is taken first. In recordings of real GPUs most segments lie below the one before, so
    addresses fall; rising ones miss the peak of one recording by 7%. With ``is_rising`` they rise all the same:
    allocators that take the block of the older segment then choose as they do by its age.
    """

    def __init__(self, limit_bytes: int | None, counters: Counters, is_rising: bool = False) -> None:
        self.limit_bytes = UNLIMITED_BYTES if limit_bytes is None else limit_bytes
        self._counters = counters
        self._is_rising = is_rising
        self._next_address = _LOWEST_ADDRESS if is_rising else _HIGHEST_ADDRESS

    def give(self, size: int) -> bool:
        """Back ``size`` bytes with memory, unless that exceeds the limit."""
        if self._counters.reserved + size > self.limit_bytes:
            return False
        self._counters.reserve(size)
        return True

    def take_back(self, size: int) -> None:
        self._counters.reserved -= size

    def addresses(self, size: int, alignment: int) -> int:
        """Reserve a range of addresses without memory."""
        if self._is_rising:
            address = -(-self._next_address // alignment) * alignment
            self._next_address = address + size
            return address
        self._next_address = (self._next_address - size) // alignment * alignment
        return self._next_address
