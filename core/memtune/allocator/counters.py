"""The allocator's counters, by the names of torch.cuda.memory_stats."""

from __future__ import annotations

from dataclasses import dataclass


def fragmentation(active_bytes: float, reserved_bytes: float) -> float:
    """The share of the reserved bytes that is not in use: 1 - active / reserved (GMLake, arXiv 2401.08156)."""
    return 1 - active_bytes / reserved_bytes if reserved_bytes else 0.0


@dataclass(frozen=True)
class Stats:
    """The counters at one moment, and their peaks since the start or the last reset_peak."""

    requested_bytes: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    peak_inactive_split_bytes: int
    largest_free_block_bytes: int
    retries: int
    ooms: int

    @property
    def fragmentation(self) -> float:
        """The fragmentation at the peak."""
        return fragmentation(self.peak_active_bytes, self.peak_reserved_bytes)


class Counters:
    """The running sums. Peaks are updated only where a sum can grow."""

    __slots__ = (
        "_peak_active",
        "_peak_allocated",
        "_peak_inactive_split",
        "_peak_requested",
        "_peak_reserved",
        "active",
        "allocated",
        "inactive_split",
        "ooms",
        "requested",
        "reserved",
        "retries",
    )

    def __init__(self) -> None:
        self.requested = self.allocated = self.active = self.reserved = self.inactive_split = 0
        self.retries = self.ooms = 0
        self.reset_peak()

    def reset_peak(self) -> None:
        self._peak_requested = self.requested
        self._peak_allocated = self.allocated
        self._peak_active = self.active
        self._peak_reserved = self.reserved
        self._peak_inactive_split = self.inactive_split

    def take(self, requested: int, size: int) -> None:
        """Count an allocated block."""
        self.requested += requested
        self.allocated += size
        self.active += size
        if self.requested > self._peak_requested:
            self._peak_requested = self.requested
        if self.allocated > self._peak_allocated:
            self._peak_allocated = self.allocated
        if self.active > self._peak_active:
            self._peak_active = self.active

    def reserve(self, size: int) -> None:
        """Count memory from the device."""
        self.reserved += size
        self._peak_reserved = max(self._peak_reserved, self.reserved)

    def change_inactive_split(self, change: int) -> None:
        """Change the free bytes that cannot be released because another part of their segment is in use."""
        self.inactive_split += change
        if self.inactive_split > self._peak_inactive_split:
            self._peak_inactive_split = self.inactive_split

    def stats(self, largest_free_block_bytes: int) -> Stats:
        return Stats(
            requested_bytes=self.requested,
            allocated_bytes=self.allocated,
            active_bytes=self.active,
            reserved_bytes=self.reserved,
            inactive_split_bytes=self.inactive_split,
            peak_requested_bytes=self._peak_requested,
            peak_allocated_bytes=self._peak_allocated,
            peak_active_bytes=self._peak_active,
            peak_reserved_bytes=self._peak_reserved,
            peak_inactive_split_bytes=self._peak_inactive_split,
            largest_free_block_bytes=largest_free_block_bytes,
            retries=self.retries,
            ooms=self.ooms,
        )
