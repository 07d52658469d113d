"""The lines of code that hold memory at the peak, from the history in a torch memory snapshot."""

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
# An allocation's stack starts inside torch and ends where MemTune starts the script.
_NOT_THE_USERS = re.compile(r"<|.*/(torch|memtune_runner)/")
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")


def at_peak(snapshot: Path, root: Path) -> dict[str, int]:
    """The bytes held by each line of code at the peak of the GPU where it is highest, largest first.

    A line is named by file, function and text, so its name does not change when lines are added above it.
    """
    # Safe to unpickle: MemTune's own process wrote it.
    histories = pickle.loads(snapshot.read_bytes())["device_traces"]
    sizes: Counter[str] = Counter()
    for event in max(map(_live_at_peak, histories), key=lambda live: sum(event["size"] for event in live)):
        sizes[_name(event.get("frames", ()), root)] += event["size"]
    return dict(sizes.most_common())


def _live_at_peak(history: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The live allocations at the peak."""
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
    """A machine-independent path."""
    if _INSTALLED.match(file):
        return _INSTALLED.sub("", file)
    path = Path(file)
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name
