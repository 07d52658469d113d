"""Inline SVG: rectangles, lines, text and axes. Colours are CSS classes of the page, for dark mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

Scale = Callable[[float], float]


class Frame(NamedTuple):
    """The plot area, inside the titles and axes."""

    left: float
    top: float
    right: float
    bottom: float

    def across(self, low: float, high: float) -> Scale:
        """A scale from values to x coordinates."""
        return lambda value: self.left + (value - low) / ((high - low) or 1.0) * (self.right - self.left)

    def up(self, low: float, high: float) -> Scale:
        """A scale from values to y coordinates, bottom up."""
        return lambda value: self.bottom - (value - low) / ((high - low) or 1.0) * (self.bottom - self.top)


def picture(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """The SVG element, as wide as the page; the title is for screen readers."""
    shape = f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}"'
    return f"<svg {shape}>\n{chr(10).join(parts)}\n</svg>"


def box(left: float, top: float, width: float, height: float, look: str, tooltip: str = "", round_by: float = 2) -> str:
    """A rectangle; ``look`` is a CSS class or a style, ``told`` a tooltip."""
    place = f'x="{left:.1f}" y="{top:.1f}" width="{max(width, 0.0):.1f}" height="{max(height, 0.0):.1f}"'
    return f'<rect {place} rx="{round_by:g}" {look_of(look)}>{_title(tooltip)}</rect>'


def line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {look_of(look)}/>'


def dot(x: float, y: float, radius: float, look: str, tooltip: str = "") -> str:
    """A point."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {look_of(look)}>{_title(tooltip)}</circle>'


def path(points: Sequence[tuple[float, float]], look: str, tooltip: str = "") -> str:
    """A line through points."""
    steps = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(points))
    return f'<path d="{steps}" fill="none" {look_of(look)}>{_title(tooltip)}</path>'


def words(x: float, y: float, text: str, look: str = "", anchor: str = "start") -> str:
    """A line of text, escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {look_of(look)}>{escape(text)}</text>'


def x_axis(frame: Frame, scale: Scale, ticks: Sequence[tuple[float, str]], title: str = "") -> list[str]:
    """Vertical grid lines with values below."""
    parts = []
    for value, text in ticks:
        parts.append(line(scale(value), frame.top, scale(value), frame.bottom, "grid"))
        parts.append(words(scale(value), frame.bottom + 16, text, "tick", "middle"))
    return [*parts, words(frame.right, frame.bottom + 32, title, "tick", "end")] if title else parts


def y_axis(frame: Frame, scale: Scale, ticks: Sequence[tuple[float, str]], title: str = "") -> list[str]:
    """Horizontal grid lines with values beside them."""
    parts = []
    for value, text in ticks:
        parts.append(line(frame.left, scale(value), frame.right, scale(value), "grid"))
        parts.append(words(frame.left - 8, scale(value) + 4, text, "tick", "end"))
    return [*parts, words(frame.left - 8, frame.top - 10, title, "tick", "end")] if title else parts


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values between ``low`` and ``high``, including the ends if they are round."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def look_of(look: str) -> str:
    """The SVG attribute for a CSS class or a style."""
    if not look:
        return ""
    return f'style="{escape(look)}"' if ":" in look else f'class="{escape(look)}"'


def _title(tooltip: str) -> str:
    return f"<title>{escape(tooltip)}</title>" if tooltip else ""
