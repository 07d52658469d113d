"""Text tables and bars. Hand-written: a table library takes longer to import than the prediction takes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from memtune.memory.prediction import Component, Interval, percent
from memtune.units import Unit, unit_of
from memtune_cli.views.screen import Screen

# Components below this share of the bar are combined.
_SMALL = 0.012
_GLYPHS = "█▓▒░▚▞▤▥▦▧▨▩"
_ASCII_GLYPHS = "#=+-*%ox~&@$"
# 256-colour codes that are distinguishable on dark and light backgrounds.
_COLOURS = ("33", "214", "71", "203", "141", "45", "179", "169", "108", "67", "247", "130")


class Peak(Protocol):
    """The peak memory of one rank and its components."""

    @property
    def device(self) -> Interval:
        """The total."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The components."""


class Column(NamedTuple):
    """A table column; on a narrow screen the columns with the highest ``weight`` are dropped first."""

    title: str
    right: bool = True
    weight: int = 0


def table(screen: Screen, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines. Columns that do not fit are left out, highest weight first."""
    kept = list(range(len(columns)))
    widths = [max(len(columns[i].title), *(len(row[i]) for row in rows)) for i in kept]
    while sum(widths[i] + 2 for i in kept) > screen.width and max(columns[i].weight for i in kept) > 0:
        kept.remove(max(kept, key=lambda i: columns[i].weight))
    lines = [_line([columns[i].title for i in kept], [widths[i] for i in kept], [columns[i].right for i in kept])]
    body = [_line([row[i] for i in kept], [widths[i] for i in kept], [columns[i].right for i in kept]) for row in rows]
    return [screen.bold(lines[0]), *body]


def _line(cells: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> str:
    aligned = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(cells, widths, rights, strict=True)]
    return ("  " + "  ".join(aligned)).rstrip()


def wrapped(screen: Screen, text: str, indent: int) -> list[str]:
    """The text wrapped to the screen; all lines but the first are indented."""
    return textwrap.wrap(text, screen.width, subsequent_indent=" " * indent, break_on_hyphens=False)


def between(interval: Interval, scale: float = 1.0, digits: int = 1) -> str:
    """``55.1–68.0``: the bounds of the interval."""
    return f"{interval.lower / scale:,.{digits}f}–{interval.upper / scale:,.{digits}f}"


def seconds(value: float) -> str:
    """A duration with significant digits only."""
    return f"{value:,.0f} s" if value >= 100 else f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def likely(probability: float) -> str:
    """A probability in whole percent; nothing that is predicted is certain."""
    return f"{min(max(percent(probability), 1), 99)}%"


def between_bytes(interval: Interval, unit: Unit, more_digits: int = 0) -> str:
    """The bounds of an amount of memory, without its unit."""
    return between(interval, unit.size_bytes, unit.digits + more_digits)


def memory_bar(screen: Screen, peak: Peak, usable_bytes: int) -> list[str]:
    """Peak memory as a stacked bar against the GPU's, with a legend."""
    parts = visible_parts(peak, unit_of(usable_bytes))
    total_bytes = peak.device.expected
    full_bytes = max(total_bytes, usable_bytes)
    width = screen.width - 4
    cells = _share_cells([part.bytes.expected for part in parts], total_bytes, round(width * total_bytes / full_bytes))
    bar = "".join(_fill(screen, i) * count for i, count in enumerate(cells))
    edge = round(width * usable_bytes / full_bytes)
    free = screen.dim(("·" if screen.unicode else ".") * (width - sum(cells)))
    lines = [f"  {_painted(screen, cells) if screen.colours else bar}{free}"]
    if total_bytes > usable_bytes:
        lines.append("  " + "the GPU's memory ends here ".rjust(edge - 1) + ("▲" if screen.unicode else "^"))
    return lines + _legend(screen, parts, total_bytes, usable_bytes)


def level_bar(screen: Screen, size_bytes: float, full_bytes: float, width: int, colour: str) -> str:
    """A bar of one amount against the total."""
    cells = max(0, min(width, round(width * size_bytes / full_bytes))) if full_bytes else 0
    filled, free = ("█", "·") if screen.unicode else ("#", ".")
    return screen.paint(filled * cells, colour) + screen.dim(free * (width - cells))


def visible_parts(peak: Peak, unit: Unit) -> list[Component]:
    """The components, with small ones combined as ``other`` if that is visible."""
    least_bytes = max(_SMALL * peak.device.expected, unit.least_bytes)
    large = [part for part in peak.components if part.bytes.expected >= least_bytes]
    small = [part for part in peak.components if part.bytes.expected < least_bytes]
    if (len(small) == 1 and small[0].bytes.expected >= unit.least_bytes) or not small:
        return list(peak.components)
    sums = [sum(values) for values in zip(*(part.bytes for part in small), strict=True)]
    other = Component("other", Interval(*sums))
    return [*large, other] if other.bytes.expected >= unit.least_bytes else large


def _share_cells(sizes: Sequence[float], total: float, width: int) -> list[int]:
    """Bar lengths that sum to the width: boundaries are rounded, not lengths."""
    ends, sum_so_far = [0], 0.0
    for size in sizes:
        sum_so_far += size
        ends.append(round(width * sum_so_far / total))
    return [end - start for start, end in pairwise(ends)]


def _fill(screen: Screen, index: int) -> str:
    if screen.colours:
        return _GLYPHS[0]
    glyphs = _GLYPHS if screen.unicode else _ASCII_GLYPHS
    return glyphs[index % len(glyphs)]


def _painted(screen: Screen, cells: Sequence[int]) -> str:
    return "".join(screen.paint(_GLYPHS[0] * n, _colour(i)) for i, n in enumerate(cells) if n)


def _colour(index: int) -> str:
    return f"38;5;{_COLOURS[index % len(_COLOURS)]}"


def _legend(screen: Screen, parts: Sequence[Component], total_bytes: float, usable_bytes: int) -> list[str]:
    unit = unit_of(usable_bytes)

    def entry(name: str, size_bytes: float) -> str:
        return f"{name:<18}{unit.number(size_bytes):>6} {unit.name}B"

    entries = [(_fill(screen, i), _colour(i), entry(part.name, part.bytes.expected)) for i, part in enumerate(parts)]
    free_bytes = usable_bytes - total_bytes
    rest = entry("free" if free_bytes >= 0 else "missing", abs(free_bytes))
    entries.append(("·" if screen.unicode else ".", "2", rest))
    per_line = max(1, (screen.width - 2) // 33)
    # Column by column, so that the legend follows the order of the bar.
    rows = -(-len(entries) // per_line)
    lines = []
    for row in range(rows):
        cells = [f"{screen.paint(glyph, colour)} {text:<30}" for glyph, colour, text in entries[row::rows]]
        lines.append("  " + " ".join(cells).rstrip())
    return lines
