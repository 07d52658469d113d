"""Converts torch.cuda.memory._snapshot to a fixture for the allocator model: requests and driver segments.

A fixture has the events without their stacks, small enough for bench/results/snapshots, in the format of the recordings
that tests/contract replays: `a` is an allocation, `f` a free, `+` memory that the driver gave, `-` memory that it took
back, and `o` an out-of-memory. Beyond those recordings, `e` stands where the program emptied the cache: `-` after it is
part of that, any other of a retry, for which the allocator emptied its cache because the driver had refused a request.
`retries` is what torch counted (num_alloc_retries), if it was asked: the events alone tell only what they were read as.
In a replay the model must reserve the same bytes, and retry and run out of memory where the GPU's allocator did.
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from memtune.allocator import AllocatorOutOfMemory, AllocatorSettings, CachingAllocator
from memtune.allocator.counters import Counters
from memtune.allocator.device import DeviceModel

KEPT = Path(__file__).parent / "results" / "snapshots"
MOST_EVENTS = 1_000_000  # that torch is asked to remember
_OLDEST_FIRST = (2, 12)  # see AllocatorSettings
_GIVEN, _TAKEN = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


@contextmanager
def noticed_emptying() -> Iterator[set[int]]:
    """Notice how many bytes the driver had taken back in all when the program emptied the cache.

    torch's trace has the same events for it as for a retry.
    """
    import torch

    empty = torch._C._cuda_emptyCache
    found: set[int] = set()

    def noticed() -> None:
        before = _taken_bytes()
        empty()
        if _taken_bytes() > before:
            found.add(before)

    with mock.patch.object(torch._C, "_cuda_emptyCache", noticed):
        yield found


def _taken_bytes() -> int:
    import torch

    return int(torch.cuda.memory_stats().get("reserved_bytes.all.freed", 0))


def is_whole(snapshot: Mapping[str, Any], device: int = 0) -> bool:
    """Whether torch has forgotten nothing of the recording, of which it keeps the last events."""
    return len(snapshot["device_traces"][device]) < MOST_EVENTS


def fixture_of(
    snapshot: Mapping[str, Any],
    torch: str,
    emptied: Container[int] = (),
    device: int = 0,
    retries: int | None = None,
) -> dict[str, Any]:
    """The events of one device since the beginning of the recording, which must be that of the process.

    ``torch`` is the version that recorded it, ``emptied`` what noticed_emptying found, ``retries`` what torch counted.
    """
    streams: dict[int, int] = {}
    events: list[list[Any]] = []
    taken_bytes = 0
    for each in snapshot["device_traces"][device]:
        action, size = each["action"], each["size"]
        if action in ("alloc", "oom"):
            stream = streams.setdefault(each["stream"], len(streams))
            # An out-of-memory has no address, and says what the driver had left.
            told = ["a", each["addr"], size] if action == "alloc" else ["o", size, each["device_free"]]
            events.append([*told, stream])
        elif action == "free_completed":
            # A block that another stream uses is free only when that stream is done with it: this comes then.
            events.append(["f", each["addr"]])
        elif action in _GIVEN:
            events.append(["+", each["addr"], size])
        elif action in _TAKEN:
            if taken_bytes in emptied:
                events.append(["e"])
            taken_bytes += size
            events.append(["-", each["addr"], size])
    return {
        "torch": torch,
        "expandable": bool(snapshot.get("allocator_settings", {}).get("expandable_segments", False)),
        "segments": [],
        "live": [],
        "events": events,
        "reserved_at_end": [0, *_reserved(events)][-1],
        **({} if retries is None else {"retries": retries}),
    }


def write(fixture: Mapping[str, Any], path: Path) -> None:
    """Write a fixture; equal fixtures give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(fixture).encode("ascii"), mtime=0))


def read(path: Path) -> dict[str, Any]:
    """Read a fixture."""
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


class Replayed(NamedTuple):
    """The result of the model in a replay, or of the GPU's allocator in its recording."""

    reserved_bytes: int
    retries: int
    ooms: int


def recorded(fixture: Mapping[str, Any]) -> Replayed:
    """The actions of the GPU's allocator. It retries before it runs out of memory, also where it has nothing to give
    back.
    """
    retries = fixture.get("retries")
    if retries is None:
        retries = sum(each.is_retried for each in _requests(fixture["events"]))
    ooms = sum(kind == "o" for kind, *_ in fixture["events"])
    return Replayed(max(_reserved(fixture["events"]), default=0), retries, ooms)


def replayed(fixture: Mapping[str, Any]) -> Replayed:
    """The model's actions for the same requests: it empties its cache where the program did, and is refused memory
    where the GPU's allocator was.
    """
    major, minor = (int(part) for part in fixture["torch"].split(".")[:2])
    oldest_first, expandable = (major, minor) >= _OLDEST_FIRST, fixture["expandable"]
    allocator = CachingAllocator(settings=AllocatorSettings(expandable, oldest_first=oldest_first))
    own_addresses = oldest_first or expandable
    driver = _RecordedDriver(allocator._counters, oldest_first, [] if own_addresses else fixture["events"])
    allocator._device = driver
    handles: dict[int, int] = {}
    for request in _requests(fixture["events"]):
        kind, *values = request.event
        if kind == "e":
            allocator.empty_cache()
        elif kind == "f":
            allocator.free(handles.pop(values[0]))
        else:
            driver.refusals = 2 if kind == "o" else int(request.is_retried)
            with suppress(AllocatorOutOfMemory):
                handles[values[0]] = allocator.allocate(values[kind == "a"], values[-1])
            driver.refusals = 0
    stats = allocator.stats()
    return Replayed(stats.peak_reserved_bytes, stats.retries, stats.ooms)


class _RecordedDriver(DeviceModel):
    """Refuses a given number of times, and gives segments at the driver's addresses, if it has them.

    Up to torch 2.11 addresses decide which of two equal blocks is taken.
    """

    def __init__(self, counters: Counters, is_rising: bool, events: Iterable[list[Any]]) -> None:
        super().__init__(None, counters, is_rising)
        self.refusals = 0
        self._recorded: dict[int, deque[int]] = {}
        for kind, *values in events:
            if kind == "+":
                self._recorded.setdefault(values[1], deque()).append(values[0])

    def give(self, size: int) -> bool:
        if self.refusals:
            self.refusals -= 1
            return False
        return super().give(size)

    def addresses(self, size: int, alignment: int) -> int:
        recorded = self._recorded.get(size)
        return recorded.popleft() if recorded else super().addresses(size, alignment)


class _Request(NamedTuple):
    """The program's request, and whether the allocator gave memory back for it and asked the driver again."""

    event: list[Any]
    is_retried: bool = False


def _requests(events: Iterable[list[Any]]) -> Iterator[_Request]:
    is_emptied = is_taken = is_given = False
    for event in events:
        kind = event[0]
        if kind in "+-":
            is_given |= kind == "+"
            is_taken |= kind == "-" and not is_emptied
            continue
        if is_taken and not is_given and kind != "o":
            # Nobody asked the driver again, so it was an emptying that was not noticed: by a library in C++, say.
            yield _Request(["e"])
            is_taken = False
        yield _Request(event, is_taken or kind == "o")
        is_emptied, is_taken, is_given = kind == "e", False, False


def _reserved(events: Iterable[list[Any]]) -> Iterator[int]:
    reserved = 0
    for kind, *values in events:
        if kind in "+-":
            reserved += values[1] if kind == "+" else -values[1]
            yield reserved
