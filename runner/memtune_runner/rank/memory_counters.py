"""`Reading`: the memory counters of a device at one moment. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """The counters at one moment; peaks count since the last reset."""

    total_bytes: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    peak_inactive_split_bytes: int
    non_torch_bytes: int | None  # unknown on a shared device
    retries: int
    ooms: int
    made_up_sizes: int | None = None  # on an emulated GPU only
