"""The highest readings of a run, as the memory section of its report."""

from __future__ import annotations

from memtune.wire.report import Memory
from memtune_runner.rank.memory_counters import Reading


class MemoryRecord:
    """The peaks over all readings. Each reading has the peaks since the previous one."""

    def __init__(self) -> None:
        self._memory = Memory()

    def add(self, reading: Reading) -> None:
        """Add a reading."""
        before = self._memory
        self._memory = Memory(
            device_total_bytes=reading.total_bytes,
            peak_allocated_bytes=_larger(before.peak_allocated_bytes, reading.peak_allocated_bytes),
            peak_active_bytes=_larger(before.peak_active_bytes, reading.peak_active_bytes),
            peak_reserved_bytes=_larger(before.peak_reserved_bytes, reading.peak_reserved_bytes),
            peak_inactive_split_bytes=_larger(before.peak_inactive_split_bytes, reading.peak_inactive_split_bytes),
            non_torch_bytes=None
            if reading.non_torch_bytes is None
            else _larger(before.non_torch_bytes, reading.non_torch_bytes),
            alloc_retries=reading.retries,
            made_up_sizes=reading.made_up_sizes,
        )

    def memory(self) -> Memory:
        """Return the memory section of the report."""
        return self._memory


def _larger(before: int | None, now: int) -> int:
    return max(before or 0, now)
