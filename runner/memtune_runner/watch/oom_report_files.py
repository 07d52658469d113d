"""Text files beside the report of an out-of-memory run: memory by component and by line of code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from memtune.units import Unit, unit_of
from memtune.wire.report import ReportedComponent

_MOST_SITES = 20
_IN_USE = frozenset({"active_allocated", "active_pending_free", "active_awaiting_free"})
# Frames of the libraries and of what follows values on an emulated GPU; the line that a user can change is above them.
_INNER = ("/torch/", "/deepspeed/", "/memtune_runner/emulated/", "??", "<frozen")


def top_sites(snapshot: Mapping[str, Any]) -> list[ReportedComponent]:
    """Return the lines of code that hold most bytes, from a torch.cuda.memory snapshot with recorded history."""
    sizes: Counter[str] = Counter()
    for segment in snapshot.get("segments", ()):
        for block in segment["blocks"]:
            if block["state"] in _IN_USE:
                sizes[_site(block.get("frames", ()))] += block["size"]
    return [ReportedComponent(site, size_bytes) for site, size_bytes in sizes.most_common(_MOST_SITES)]


def write_companion(
    directory: Path, rank: int, parts: Iterable[ReportedComponent], sites: Iterable[ReportedComponent]
) -> None:
    """Write both tables as text. If the directory is not writable, the files are lost but not the report."""
    parts, sites = list(parts), list(sites)
    line = partial(_line, unit_of(max((each.size_bytes for each in (*parts, *sites)), default=0)))
    lines = ["by component", *map(line, parts), "", "by line of code", *map(line, sites), ""]
    try:
        (directory / f"memory-rank-{rank}.txt").write_text("\n".join(lines), encoding="utf-8")
    except OSError as error:
        print(f"memtune: the memory of rank {rank} cannot be written to {directory}: {error.strerror}", file=sys.stderr)


def _line(unit: Unit, component: ReportedComponent) -> str:
    return f"{unit.number(component.size_bytes, more_digits=2):>10} {unit.name}B  {component.name}"


def _site(frames: Iterable[Mapping[str, Any]]) -> str:
    named = [f"{each['filename']}:{each['line']} {each['name']}" for each in frames]
    own = (each for each in named if not any(part in each for part in _INNER))
    # Recording starts before CUDA. Allocations without a stack come from a thread that runs no Python.
    return next(own, named[0] if named else "backward pass: autograd's thread runs no line of Python")
