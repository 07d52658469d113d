"""What torch.cuda.memory._dump_snapshot tells, as a fixture of the allocator model: requests, and what it reserved.

A snapshot has a stack for every event; a fixture has the events alone, small enough to be kept, in
bench/results/snapshots. Replayed through the allocator model it must reserve the same bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memtune.allocator import AllocatorSettings, Event, replay

KEPT = Path(__file__).parent / "results" / "snapshots"
_GROWS = ("segment_alloc", "segment_map")
_SHRINKS = ("segment_free", "segment_unmap")


def fixture_of(snapshot: Mapping[str, Any], device: int = 0) -> dict[str, Any]:
    """The events of one device, from the beginning of the recording, which must be that of the process."""
    trace = snapshot["device_traces"][device]
    streams: dict[int, int] = {}
    events = [
        # A block that another stream uses can be had again only when that stream is done with it.
        ["a", each["addr"], each["size"], streams.setdefault(each["stream"], len(streams))]
        if each["action"] == "alloc"
        else ["f", each["addr"]]
        for each in trace
        if each["action"] in ("alloc", "free_completed")
    ]
    settings = snapshot.get("allocator_settings", {})
    return {
        "expandable": bool(settings.get("expandable_segments", False)),
        "peak_reserved_bytes": _peak_reserved(trace),
        "events": events,
    }


def write(fixture: Mapping[str, Any], path: Path) -> None:
    """Keep a fixture; equal ones are equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(fixture).encode("ascii"), mtime=0))


def read(path: Path) -> dict[str, Any]:
    """A fixture as it was kept."""
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def replayed_bytes(fixture: Mapping[str, Any]) -> int:
    """What the allocator model reserves at most for the same requests."""
    events = [
        Event("alloc", each[1], each[2], each[3]) if each[0] == "a" else Event("free", each[1])
        for each in fixture["events"]
    ]
    return replay(events, settings=AllocatorSettings(fixture["expandable"])).peak_reserved_bytes


def _peak_reserved(trace: Iterable[Mapping[str, Any]]) -> int:
    reserved = peak = 0
    for each in trace:
        if each["action"] in _GROWS:
            reserved += each["size"]
            peak = max(peak, reserved)
        elif each["action"] in _SHRINKS:
            reserved -= each["size"]
    return peak
