"""Replays recordings of PyTorch's caching allocator on real GPUs through the allocator model.

In a recording `a` is an allocation, `f` a free, `+` memory from the driver, `-` memory returned to it, and `o` an
out-of-memory. The replay's driver returns the same segments at the same addresses, and refuses where the GPU's did.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helm_chart import ROOT

from memtune.allocator import AllocatorOutOfMemory, AllocatorSettings, CachingAllocator
from memtune.allocator.blocks import MIN_BLOCK_BYTES, SMALL_REQUEST_BYTES, Block, Pool, round_up
from memtune.allocator.counters import Counters
from memtune.allocator.device import DeviceModel


@dataclass(frozen=True)
class Recording:
    """One device of one process: its allocator's initial state, and the events."""

    name: str
    expandable: bool
    segments: list[tuple[int, int, int, bool]]  # address, bytes, stream, is small
    live: list[tuple[int, int, int | None]]  # address, requested bytes, bytes if known
    events: list[list[Any]]
    reserved_at_end: int


class DifferenceError(AssertionError):
    """The model behaved differently from the GPU's allocator."""


def recordings() -> list[Recording]:
    """Every recording. Skips the test if there are none."""
    for directory in ROOT.parents:
        if paths := sorted((directory / "shared" / "data" / "cuda_recordings").glob("*.json.gz")):
            return [_read(path) for path in paths]
    pytest.skip(
        "no data/cuda_recordings in a directory `shared` beside the checkout: recordings of real GPUs are there"
    )


def _read(path: Path) -> Recording:
    data = json.loads(gzip.decompress(path.read_bytes()))
    return Recording(
        path.name.removesuffix(".json.gz"),
        data["expandable"],
        [tuple(each) for each in data["segments"]],
        [tuple(each) for each in data["live"]],
        data["events"],
        data["reserved_at_end"],
    )


class RecordedDriver(DeviceModel):
    """Provides the segments of the recording, and refuses where the GPU's allocator began to release its cache."""

    def __init__(self, recording: Recording, counters: Counters) -> None:
        super().__init__(None, counters)
        self.events = recording.events
        self.position = 0
        self.granted = 0
        self._expandable = recording.expandable
        self._given_address = 0
        self._to_release: Counter[int] = Counter()
        self._shifts: dict[int, int] = {}  # by the model's address of an expandable segment

    def give(self, size: int) -> bool:
        kind, *values = self.events[self.position]
        if kind in "-o":
            return False
        if kind != "+" or values[1] != size:
            raise DifferenceError(
                f"event {self.position}: the model asks the driver for {size} bytes; recorded is {kind} {values}"
            )
        self._given_address = values[0]
        self._counters.reserve(size)
        self.position += 1
        self.granted += 1
        return True

    def take_back(self, size: int) -> None:
        super().take_back(size)
        while self.events[self.position : self.position + 1] and self.events[self.position][0] == "-":
            self._to_release[self.events[self.position][2]] += 1
            self.position += 1
        if not self._to_release[size]:
            raise DifferenceError(
                f"event {self.position}: the model releases {size} bytes; not so the recorded allocator"
            )
        self._to_release[size] -= 1

    def check_released(self) -> None:
        """Check that the model has released all that the GPU's allocator has."""
        if self._to_release.total():
            raise DifferenceError(f"event {self.position}: the model does not release {+self._to_release}")

    def addresses(self, size: int, alignment: int) -> int:
        if not self._expandable:
            return self._given_address
        # The model's pages are at multiples of their size, the driver's at the segment's own address.
        recorded: int = self.events[self.position][1]
        address = recorded // alignment * alignment
        self._shifts[address] = recorded - address
        return address

    def recorded_address(self, address: int) -> int:
        """The recorded address of the model's block."""
        bases = [base for base in self._shifts if base <= address]
        return address + self._shifts[max(bases)] if bases else address


class Replay:
    """Replays one recording until the model deviates from it."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.allocator = CachingAllocator(settings=AllocatorSettings(recording.expandable))
        self.driver = RecordedDriver(recording, self.allocator._counters)
        self.allocator._device = self.driver
        self.allocations = 0
        self._reserved = hold(self.allocator, recording)
        self._handles = {address: address for address, *_ in recording.live}

    def run(self) -> None:
        """Play every event; raise DifferenceError at the first that the model plays differently."""
        driver, events = self.driver, self.recording.events
        while driver.position < len(events):
            first = driver.position
            kind, *values = events[first]
            if kind == "f":
                self.allocator.free(self._handles.pop(values[0]))
                driver.position += 1
            elif kind == "-" and self._empties_cache():
                self.allocator.empty_cache()
            else:
                self._request()
            driver.check_released()
            self._check_reserved(first)
        if self._reserved != self.recording.reserved_at_end:
            raise DifferenceError(
                f"{self._reserved} bytes are reserved at the end, not {self.recording.reserved_at_end}"
            )

    def _empties_cache(self) -> bool:
        """Whether the script emptied the cache; the allocator does so itself for a request that it cannot serve."""
        events = self.recording.events[self.driver.position :]
        following = next((event for event in events if event[0] != "-"), ["f"])
        if following[0] in "fa":
            return True
        kind, *values = next(event for event in events if event[0] in "ao")
        size = round_up(values[kind == "a"], MIN_BLOCK_BYTES)
        pools = self.allocator._small_pools if size <= SMALL_REQUEST_BYTES else self.allocator._large_pools
        pool = pools.get(values[2] if kind == "a" and len(values) > 2 else 0)
        return pool is not None and pool.largest_bytes >= size

    def _request(self) -> None:
        driver, events = self.driver, self.recording.events
        end = next(n for n in range(driver.position, len(events)) if events[n][0] in "ao")
        kind, *values = events[end]
        is_allocated = kind == "a"
        try:
            handle = self.allocator.allocate(values[is_allocated], *values[2:] if is_allocated else ())
        except AllocatorOutOfMemory:
            handle = 0
        if driver.position != end:
            raise DifferenceError(f"event {driver.position}: the model does not ask for {events[driver.position]}")
        if driver.recorded_address(handle) != (values[0] if is_allocated else 0):
            raise DifferenceError(f"event {end}: the model answers {events[end]} with address {handle}")
        if is_allocated:
            self._handles[values[0]] = handle
            self.allocations += 1
        driver.position += 1

    def _check_reserved(self, first: int) -> None:
        for kind, *values in self.recording.events[first : self.driver.position]:
            self._reserved += values[1] if kind == "+" else -values[1] if kind == "-" else 0
        if self.allocator.stats().reserved_bytes != self._reserved:
            raise DifferenceError(f"event {first}: the model reserves other than {self._reserved} bytes")


def hold(allocator: CachingAllocator, recording: Recording) -> int:
    """Allocate what the process held at the start of the recording; return the reserved bytes."""
    live = {address: (requested, size) for address, requested, size in recording.live}
    addresses = sorted(live)
    for segment, length, stream, is_small in recording.segments:
        pools = allocator._small_pools if is_small else allocator._large_pools
        pool = pools.get(stream) or allocator._new_pool(stream, is_small)
        allocator._counters.reserve(length)
        inside = addresses[bisect_left(addresses, segment) : bisect_left(addresses, segment + length)]
        _hold_segment(allocator, pool, (segment, segment + length), {each: live[each] for each in inside})
    return sum(length for _, length, *_ in recording.segments)


def _hold_segment(
    allocator: CachingAllocator, pool: Pool, limits: tuple[int, int], live: dict[int, tuple[int, int | None]]
) -> None:
    position, end = limits
    borders = iter([*live, end])
    border = next(borders)
    preceding: Block | None = None
    while position < end:
        if position == border:
            requested, size = live[position]
            border = next(borders)
            # If a block's size is not recorded, a rest too small to be split off belongs to it.
            rounded = round_up(requested, MIN_BLOCK_BYTES)
            size = size or (rounded if border - position - rounded >= pool.min_rest_bytes else border - position)
            block = Block(position, size, pool, "allocated")
            block.requested = requested
            allocator._live[position] = block
            allocator._counters.take(requested, size)
        else:
            block = Block(position, border - position, pool, "free")
        block.preceding = preceding
        if preceding is not None:
            preceding.following = block
        preceding = block
        position += block.size
    while preceding is not None:
        if preceding.state == "free":
            pool.add(preceding)
        preceding = preceding.preceding
