"""Plays a tape to the allocator: peaks by part of the run, and the timeline of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from memtune.allocator import AllocatorOutOfMemory, AllocatorSettings, CachingAllocator
from memtune.allocator.counters import fragmentation
from memtune.memory.replay.tape import KINDS, PHASES, STEP, Tape


class PhasePeak(NamedTuple):
    """The peaks of one part of a run, in bytes."""

    requested: int
    allocated: int
    active: int
    reserved: int

    @property
    def fragmentation(self) -> float:
        """The fragmentation at the peak."""
        return fragmentation(self.active, self.reserved)


@dataclass(frozen=True)
class Replayed:
    """The peaks of a plan's run. ``fits`` is False if it exceeded the limit, where the peaks end."""

    phases: dict[str, PhasePeak]
    retries: int
    fits: bool

    @property
    def peak(self) -> PhasePeak:
        """The maximum of every number over the run."""
        return PhasePeak(*map(max, zip(*self.phases.values(), strict=True)))


@dataclass(frozen=True)
class Timeline:
    """Bytes by kind after every event of the last step. ``kinds`` has a column for each name in ``KINDS``."""

    kinds: tuple[str, ...]
    points: list[tuple[int, ...]]
    marks: list[tuple[int, str]]  # where a part of the step begins

    @property
    def peak(self) -> int:
        """The index of the largest total."""
        return max(range(len(self.points)), key=lambda point: sum(self.points[point]))

    def downsampled(self, count: int) -> list[int]:
        """At most ``count`` points, evenly spread: the largest total of each stretch."""
        step = max(1, -(-len(self.points) // count))
        stretches = (range(start, min(start + step, len(self.points))) for start in range(0, len(self.points), step))
        return [max(stretch, key=lambda point: sum(self.points[point])) for stretch in stretches]


def play(tape: Tape, settings: AllocatorSettings, limit_bytes: int | None = None) -> Replayed:
    """The allocator's peaks in every part of the run."""
    allocator = CachingAllocator(limit_bytes, settings)
    peaks: dict[str, PhasePeak] = {}
    handles = [0] * len(tape.sizes)
    ends = [mark[0] for mark in tape.marks[1:]] + [len(tape.events)]
    fits = True
    for (start, phase), end in zip(tape.marks, ends, strict=True):
        allocator.reset_peak()
        try:
            _play(allocator, tape, handles, start, end)
        except AllocatorOutOfMemory:
            fits = False
        stats = allocator.stats()
        seen = PhasePeak(
            stats.peak_requested_bytes, stats.peak_allocated_bytes, stats.peak_active_bytes, stats.peak_reserved_bytes
        )
        before = peaks.get(PHASES[phase], seen)
        peaks[PHASES[phase]] = PhasePeak(*map(max, zip(before, seen, strict=True)))
        if not fits:
            break
    return Replayed(peaks, allocator.stats().retries, fits)


def _play(allocator: CachingAllocator, tape: Tape, handles: list[int], start: int, end: int) -> None:
    allocate, free, sizes, streams = allocator.allocate, allocator.free, tape.sizes, tape.streams
    for event in tape.events[start:end]:
        if event < 0:
            free(handles[~event])
        elif streams and event in streams:
            handles[event] = allocate(sizes[event], streams[event])
        else:
            handles[event] = allocate(sizes[event])


def live_peak(tape: Tape) -> int:
    """The most bytes requested at once: what a count of tensors sees."""
    live = peak = 0
    for event in tape.events:
        if event >= 0:
            live += tape.sizes[event]
            peak = max(peak, live)
        else:
            live -= tape.sizes[~event]
    return peak


def timeline(tape: Tape) -> Timeline:
    """The bytes by kind over the last step."""
    last = _last_step(tape)
    start = tape.marks[last][0]
    current = [0] * len(KINDS)
    points = []
    for position, event in enumerate(tape.events):
        tensor = event if event >= 0 else ~event
        current[tape.kinds[tensor]] += tape.sizes[tensor] if event >= 0 else -tape.sizes[tensor]
        if position >= start:
            points.append(tuple(current))
    return Timeline(KINDS, points, [(position - start, PHASES[phase]) for position, phase in tape.marks[last:]])


def _last_step(tape: Tape) -> int:
    """The mark at which the last step begins, right after the step before."""
    return max(number for number, (_, phase) in enumerate(tape.marks[:-1]) if phase == STEP) + 1
