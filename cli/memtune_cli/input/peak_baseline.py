"""The committed baseline file of memory peaks, and the comparison of a new peak with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memtune.units import MIB, amount

VERSION = 1
_LINES_SHOWN = 8


class PeakError(Exception):
    """A failed peak assertion. The message says why and what to do."""


class BaselinePeak(NamedTuple):
    """An emulated peak and the facts that make peaks comparable. ``lines`` are bytes by line of code."""

    gpu: str
    ranks: int
    torch: str
    peak_bytes: dict[str, int]
    lines: dict[str, int]

    @classmethod
    def of(cls, result: Mapping[str, Any], lines: Mapping[str, int]) -> BaselinePeak:
        """Create it from a `memtune emulate` result. Lines below 1 MiB are dropped to keep diffs small."""
        peaks = {metric: result["measured"]["peakBytes"][metric] for metric in ("allocated", "active", "reserved")}
        large = {line: size for line, size in lines.items() if size >= MIB}
        return cls(result["gpu"]["name"], result["ranks"], result["torch"]["version"], peaks, large)


def read(path: Path) -> dict[str, BaselinePeak]:
    """The peaks of a baseline file; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != VERSION:
            raise PeakError(f"{path} has version {document['version']!r}; this release of MemTune reads {VERSION}")
        return {
            name: BaselinePeak(each["gpu"], each["ranks"], each["torch"], dict(each["peakBytes"]), dict(each["lines"]))
            for name, each in document["peaks"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PeakError(
            f"{path} is not a baseline of MemTune ({type(error).__name__}: {error}); restore it, or delete it and run "
            "pytest --memtune-write-baseline"
        ) from None


def write(path: Path, peaks: Mapping[str, BaselinePeak]) -> None:
    """Write the file, sorted for small diffs."""
    document = {
        "version": VERSION,
        "peaks": {
            name: {
                "gpu": peak.gpu, "ranks": peak.ranks, "torch": peak.torch, "peakBytes": peak.peak_bytes,
                "lines": peak.lines,
            }
            for name, peak in sorted(peaks.items())
        },
    }  # fmt: skip
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def compare(now: BaselinePeak, before: BaselinePeak, metric: str, tolerance: float) -> Iterator[str]:
    """The lines that explain why a peak fails against its baseline; none if it passes."""
    if (now.gpu, now.ranks) != (before.gpu, before.ranks):
        yield f"The baseline is of {_where(before)}, and this is {_where(now)}, so they cannot be compared."
        yield "Write a new one with pytest --memtune-write-baseline."
        return
    size, base = now.peak_bytes[metric], before.peak_bytes[metric]
    if size <= base * (1 + tolerance):
        return
    yield (
        f"The {metric} peak is {amount(size, size)}, {amount(size - base, size - base)} above its baseline of "
        f"{amount(base, base)} (tolerance {tolerance:.1%}, {_where(now)})."
    )
    yield from growth(now, before)
    if now.torch != before.torch:
        yield f"torch is {now.torch}, the baseline was written with {before.torch}: that alone can change memory."
    yield "If this is intended, run pytest --memtune-write-baseline and commit the file."


def growth(now: BaselinePeak, before: BaselinePeak) -> Iterator[str]:
    """The lines of code that hold more memory at the peak than before."""
    grown = {line: size - before.lines.get(line, 0) for line, size in now.lines.items()}
    largest = sorted(grown.items(), key=lambda each: -each[1])[:_LINES_SHOWN]
    rows = [f"  +{amount(more, more)}  {line}" for line, more in largest if more >= MIB]
    if rows:
        yield "These lines hold more at the peak of allocated memory:"
        yield from rows


def largest(now: BaselinePeak) -> Iterator[str]:
    """The lines of code that hold the most memory at the peak."""
    if now.lines:
        yield "These lines hold most at the peak of allocated memory:"
        yield from (f"  {amount(size, size)}  {line}" for line, size in list(now.lines.items())[:_LINES_SHOWN])


def _where(peak: BaselinePeak) -> str:
    return f"rank 0 of {peak.ranks} on {peak.gpu}" if peak.ranks > 1 else f"one {peak.gpu}"
