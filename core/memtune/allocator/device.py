"""The device behind the allocator: it gives memory up to a limit, as cudaMalloc and cuMemCreate do."""

from __future__ import annotations

from memtune.allocator.blocks import LARGE_SEGMENT_BYTES, UNLIMITED_BYTES, round_up
from memtune.allocator.counters import Counters


class Device:
    """Counts what was given, and hands out addresses.

    Addresses only rise and are never handed out twice. Where the driver puts a segment is not published; it decides
    only which of two free blocks of the same size is taken first.
    """

    def __init__(self, limit_bytes: int | None, counters: Counters) -> None:
        self.limit_bytes = UNLIMITED_BYTES if limit_bytes is None else limit_bytes
        self._counters = counters
        self._next_address = LARGE_SEGMENT_BYTES  # address 0 is the null pointer

    def give(self, size: int) -> bool:
        """Back ``size`` bytes with memory, unless that exceeds the limit."""
        if self._counters.reserved + size > self.limit_bytes:
            return False
        self._counters.reserve(size)
        return True

    def take_back(self, size: int) -> None:
        self._counters.reserved -= size

    def addresses(self, size: int, alignment: int) -> int:
        """Set aside a range of addresses; no memory is behind it yet."""
        start = round_up(self._next_address, alignment)
        self._next_address = start + size
        return start
