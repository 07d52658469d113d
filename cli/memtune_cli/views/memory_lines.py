"""Which lines of code hold the memory at its peak, read off the history in torch's memory snapshot."""

from __future__ import annotations

import linecache
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

WITHOUT_LINE = "in a backward pass, or in a thread without Python"
# The stack of an allocation begins inside torch and ends where MemTune starts the script.
_NOT_THE_USERS = re.compile(r"<|.*/(torch|memtune_runner)/")
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")


def at_peak(snapshot: Path, root: Path) -> dict[str, int]:
    """The bytes of each line at the moment when most was allocated, the largest first.

    A line is named by its file, its function and its text, so that it keeps its name when lines are added above it.
    """
    # Our own process wrote it, from the user's own script.
    history = pickle.loads(snapshot.read_bytes())["device_traces"][0]
    sizes: Counter[str] = Counter()
    for event in _live_at_peak(history):
        sizes[_name(event.get("frames", ()), root)] += event["size"]
    return dict(sizes.most_common())


def _live_at_peak(history: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The allocations that are alive when their sum is largest."""
    events = [event for event in history if event["action"] in ("alloc", "free_requested")]
    used = highest = peak = 0
    live: dict[int, Mapping[str, Any]] = {}
    for place, event in enumerate(events):
        if event["action"] == "alloc":
            live[event["addr"]] = event
            used += event["size"]
            if used > highest:
                highest, peak = used, place
        elif event["addr"] in live:
            used -= live.pop(event["addr"])["size"]
    live.clear()
    for event in events[: peak + 1] if highest else ():
        if event["action"] == "alloc":
            live[event["addr"]] = event
        else:
            live.pop(event["addr"], None)
    return list(live.values())


def _name(frames: Iterable[Mapping[str, Any]], root: Path) -> str:
    for frame in frames:
        if not _NOT_THE_USERS.match(frame["filename"]):
            return _line(frame["filename"], frame["line"], frame["name"], root)
    return WITHOUT_LINE


@cache
def _line(file: str, line: int, function: str, root: Path) -> str:
    text = linecache.getline(file, line).strip()
    return f"{_short(file, root)}, {function}: {text}" if text else f"{_short(file, root)}, {function}"


def _short(file: str, root: Path) -> str:
    """A path that is the same on every machine."""
    if _INSTALLED.match(file):
        return _INSTALLED.sub("", file)
    path = Path(file)
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name
