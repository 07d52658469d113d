"""Converts torch.cuda.memory._snapshot to a fixture for the allocator model: requests and driver segments.

A fixture has the events without their stacks, small enough for bench/results/snapshots, in the format of the recordings
that tests/contract replays: `a` is an allocation, `f` a free, `+` memory that the driver gave and `-` memory that it
took back, as for a retry or an ``empty_cache``. In a replay the model must reserve the same bytes.
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memtune.allocator import AllocatorSettings, CachingAllocator, Event
from memtune.allocator.counters import Counters
from memtune.allocator.device import DeviceModel

KEPT = Path(__file__).parent / "results" / "snapshots"
_OLDEST_FIRST = (2, 12)  # see AllocatorSettings
_KINDS = {"free_completed": "f", "segment_alloc": "+", "segment_map": "+", "segment_free": "-", "segment_unmap": "-"}


def fixture_of(snapshot: Mapping[str, Any], torch: str, device: int = 0) -> dict[str, Any]:
    """The events of one device since the beginning of the recording, which must be that of the process.

    ``torch`` is the version that recorded it.
    """
    streams: dict[int, int] = {}
    events: list[list[Any]] = []
    for each in snapshot["device_traces"][device]:
        if each["action"] == "alloc":
            events.append(["a", each["addr"], each["size"], streams.setdefault(each["stream"], len(streams))])
        elif kind := _KINDS.get(each["action"]):
            # A block that another stream uses is free only when that stream is done with it: `f` comes then.
            events.append([kind, each["addr"], *([] if kind == "f" else [each["size"]])])
    return {
        "torch": torch,
        "expandable": bool(snapshot.get("allocator_settings", {}).get("expandable_segments", False)),
        "segments": [],
        "live": [],
        "events": events,
        "reserved_at_end": [0, *_reserved(events)][-1],
    }


def write(fixture: Mapping[str, Any], path: Path) -> None:
    """Write a fixture; equal fixtures give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(fixture).encode("ascii"), mtime=0))


def read(path: Path) -> dict[str, Any]:
    """Read a fixture."""
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def peak_reserved_bytes(fixture: Mapping[str, Any]) -> int:
    """The GPU allocator's peak of reserved bytes."""
    return max(_reserved(fixture["events"]), default=0)


def replayed_bytes(fixture: Mapping[str, Any]) -> int:
    """The model's peak of reserved bytes for the same requests, emptying its cache where the GPU's did."""
    major, minor = (int(part) for part in fixture["torch"].split(".")[:2])
    oldest_first, expandable = (major, minor) >= _OLDEST_FIRST, fixture["expandable"]
    allocator = CachingAllocator(settings=AllocatorSettings(expandable, oldest_first=oldest_first))
    if not (oldest_first or expandable):
        allocator._device = _RecordedAddresses(allocator._counters, fixture["events"])
    handles: dict[int, int] = {}
    for event in _requests(fixture["events"]):
        if event.action == "alloc":
            handles[event.tensor] = allocator.allocate(event.size_bytes, event.stream)
        elif event.action == "free":
            allocator.free(handles.pop(event.tensor))
        else:
            allocator.empty_cache()
    return allocator.stats().peak_reserved_bytes


class _RecordedAddresses(DeviceModel):
    """Segments at the driver's addresses, which up to torch 2.11 decide which of two equal blocks is taken."""

    def __init__(self, counters: Counters, events: Iterable[list[Any]]) -> None:
        super().__init__(None, counters)
        self._recorded: dict[int, deque[int]] = {}
        for kind, *values in events:
            if kind == "+":
                self._recorded.setdefault(values[1], deque()).append(values[0])

    def addresses(self, size: int, alignment: int) -> int:
        recorded = self._recorded.get(size)
        return recorded.popleft() if recorded else super().addresses(size, alignment)


def _requests(events: Iterable[list[Any]]) -> Iterator[Event]:
    before = ""
    for kind, *values in events:
        if kind == "a":
            yield Event("alloc", *values)
        elif kind == "f":
            yield Event("free", values[0])
        elif kind == "-" and before != "-":
            yield Event("empty_cache")
        before = kind


def _reserved(events: Iterable[list[Any]]) -> Iterator[int]:
    reserved = 0
    for kind, *values in events:
        if kind in "+-":
            reserved += values[1] if kind == "+" else -values[1]
            yield reserved
