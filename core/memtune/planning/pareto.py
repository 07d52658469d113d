"""Pareto front of two objectives: the front, its hypervolume, and the expected gain of one more point.

Both objectives are maximised, and none is below 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from memtune.memory.prediction import BOUND, Interval, share_below


class Point(NamedTuple):
    """Tokens per second and free bytes."""

    speed: float
    free: float


def is_on_front(point: Point, points: Iterable[Point]) -> bool:
    """Whether no other point is at least as good in both objectives and better in one."""
    return not any(other != point and other.speed >= point.speed and other.free >= point.free for other in points)


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points that no other point dominates, the slowest first."""
    return tuple(sorted({point for point in points if is_on_front(point, points)}))


def covered(points: Sequence[Point]) -> float:
    """The area below the front: the hypervolume above 0."""
    slowest_first = front(points)
    before = [0.0, *(point.speed for point in slowest_first)]
    return sum((point.speed - last) * point.free for point, last in zip(slowest_first, before, strict=False))


def expected_gain(points: Sequence[Point], speed: Interval, free: Interval) -> float:
    """Expected hypervolume improvement of a point with two independent coordinates.

    Between two speeds of the front, the area below the next point's free bytes is covered already. The gain there is
    the length by which the new point reaches in, times the height above: both expectations have a closed form.
    """
    slowest_first = front(points)
    edges = [0.0, *(point.speed for point in slowest_first), math.inf]
    heights = [*(point.free for point in slowest_first), 0.0]
    lengths = [expected_excess(speed, edge) for edge in edges]
    return sum(
        (near - far) * expected_excess(free, height)
        for near, far, height in zip(lengths[:-1], lengths[1:], heights, strict=True)
    )


def expected_excess(value: Interval, above: float) -> float:
    """Expected improvement: how far a normally distributed value is expected to exceed a bound."""
    if above == math.inf:
        return 0.0
    spread = max((value.upper - value.lower) / (2 * BOUND), 1e-9 * abs(value.expected), 1e-12)
    gain = value.expected - above
    place = gain / spread
    return max(gain * share_below(place) + spread * math.exp(-place * place / 2) / math.sqrt(2 * math.pi), 0.0)
