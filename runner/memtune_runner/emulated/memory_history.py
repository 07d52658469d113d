"""Analyses torch's memory history: what held the memory at its peak, and what came and went in a step."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memtune.wire.report import Phase
from memtune_runner.rank.user_code import is_library_file, is_user_file

# How many events torch keeps, each with its stack; the oldest are dropped.
MOST_EVENTS = 1_000_000
KINDS = tuple(str(phase) for phase in Phase)
_MOST_SITES = 20
_MOST_POINTS = 1600
# torch and MemTune's own code, which are not the line that allocated.
_INNER = ("/torch/", "/memtune_runner/emulated/", "/memtune_runner/watch/", "<")
_NOBODY = "no line of Python"


class Change(NamedTuple):
    """A phase and its end, in microseconds of torch's clock."""

    until_us: int
    phase: str


class _Block(NamedTuple):
    size: int
    kind: int
    frames: Sequence[Mapping[str, Any]]


_Move = tuple[_Block | None, int]


def peak_history(events: Sequence[Mapping[str, Any]], changes: Sequence[Change]) -> dict[str, Any]:
    """Return both for a result. ``changes`` are in order and end with the current phase."""
    moves = _replayed(events, changes)
    blocks, most, place = _at_peak(moves)
    return {
        "isWhole": len(events) < MOST_EVENTS,
        "tensorBytes": most,
        "phase": changes[_phase_at(changes, events[place]["time_us"])].phase if events else "",
        "largest": _largest(blocks),
        "step": _step(events, moves, changes),
    }


def _replayed(events: Sequence[Mapping[str, Any]], changes: Sequence[Change]) -> list[_Move]:
    """Return for each event the block that came or went, and the change in bytes."""
    live: dict[int, _Block] = {}
    moves = []
    for event in events:
        block, gain = None, 0
        if event["action"] == "alloc":
            kind = KINDS.index(changes[_phase_at(changes, event["time_us"])].phase)
            block = live[event["addr"]] = _Block(event["size"], kind, event.get("frames", ()))
            gain = block.size
        elif event["action"] == "free_completed" and (block := live.pop(event["addr"], None)):
            gain = -block.size
        moves.append((block, gain))
    return moves


def _phase_at(changes: Sequence[Change], time_us: int) -> int:
    return min(bisect_left(changes, time_us, key=lambda change: change.until_us), len(changes) - 1)


def _at_peak(moves: Sequence[_Move]) -> tuple[list[_Block], int, int]:
    """Return the live blocks at the peak, their bytes, and the index of that event."""
    now = most = peak = 0
    for place, (_, gain) in enumerate(moves):
        now += gain
        if now > most:
            most, peak = now, place
    live: dict[int, _Block] = {}
    for block, gain in moves[: peak + 1]:
        if gain > 0 and block:
            live[id(block)] = block
        elif gain:
            live.pop(id(block))
    return list(live.values()), most, peak


def _largest(blocks: Sequence[_Block]) -> list[dict[str, Any]]:
    """Return the lines that hold most, each with the library line that allocated for it."""
    sizes: Counter[tuple[str, str, str]] = Counter()
    counts: Counter[tuple[str, str, str]] = Counter()
    for block in blocks:
        site = (*_site(block.frames), KINDS[block.kind])
        sizes[site] += block.size
        counts[site] += 1
    return [
        {"line": line, "within": within, "phase": phase, "tensors": counts[line, within, phase], "bytes": size}
        for (line, within, phase), size in sizes.most_common(_MOST_SITES)
    ]


def _site(frames: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the user's line, and the innermost line outside torch if it is another."""
    outer = [each for each in frames if not any(part in each["filename"] for part in _INNER)]
    own = (each for each in outer if is_user_file(each["filename"]) and not is_library_file(each["filename"]))
    users, within = next(own, None), next(iter(outer), None)
    if within is None:
        return _NOBODY, ""
    line = _line(users or within)
    return line, "" if users in (None, within) else f"{_line(within)} {within['name']}"


def _line(frame: Mapping[str, Any]) -> str:
    return f"{frame['filename']}:{frame['line']}"


def _step(
    events: Sequence[Mapping[str, Any]], moves: Sequence[_Move], changes: Sequence[Change]
) -> dict[str, Any] | None:
    """Return the last whole optimizer step: bytes by allocating phase after each event; None if there is none."""
    found = _last_step([change.phase for change in changes])
    if found is None:
        return None
    begins, ends = found
    begin_us, end_us = changes[begins - 1].until_us if begins else 0, changes[ends].until_us
    points, times, now = [], [], [0] * len(KINDS)
    before = tuple(now)
    for event, (block, gain) in zip(events, moves, strict=True):
        if block is not None:
            now[block.kind] += gain
            if event["time_us"] <= begin_us:
                before = tuple(now)
            elif event["time_us"] <= end_us:
                points.append(tuple(now))
                times.append(event["time_us"])
    if not points:  # a GPU with weights that only rest, beside another that trains
        points, times = [before], [begin_us]
    places = _thinned(points)
    starts = [changes[place - 1].until_us if place else 0 for place in range(begins, ends + 1)]
    marks = [
        {"point": min(bisect_left(places, bisect_left(times, start)), len(places) - 1), "phase": change.phase}
        for start, change in zip(starts, changes[begins : ends + 1], strict=True)
    ]
    return {"kinds": list(KINDS), "points": [points[place] for place in places], "marks": marks}


def _last_step(phases: Sequence[str]) -> tuple[int, int] | None:
    """Return the indices of the first and the last phase of the last complete step; None if there is none.

    After a save or an evaluation the previous phase returns, so the first step phase after a backward pass counts.
    """
    found, first, is_backward = None, None, False
    for place, phase in enumerate(phases):
        if phase == Phase.FORWARD and first is None:
            first = place
        elif phase == Phase.BACKWARD:
            is_backward = True
        elif phase == Phase.OPTIMIZER_STEP and is_backward:
            found = (first or 0, place)
            first, is_backward = None, False
    return found


def _thinned(points: Sequence[tuple[int, ...]]) -> list[int]:
    """Return indices spread evenly over all points: of each stretch, that with the most bytes."""
    stride = -(-len(points) // _MOST_POINTS)
    stretches = (range(start, min(start + stride, len(points))) for start in range(0, len(points), stride))
    return [max(stretch, key=lambda place: sum(points[place])) for stretch in stretches]
