"""Judges the memory of the cluster's processes during a soak: which of them never levelled off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

MIB = 1 << 20
# Less growth than this from one third to the next is no leak: a page here and there.
NOISE_BYTES = MIB
# Student's t for the ten degrees of freedom of twelve medians: one time in forty the slope is lower by chance.
_CONFIDENCE = 2.228
_STRETCHES = 12


class Trend(NamedTuple):
    """The memory trend in the second half: bytes from one third of the run to the next, and its confidence."""

    bytes_a_third: float
    give_or_take_bytes: float

    def __str__(self) -> str:
        return f"{self.bytes_a_third / MIB:.1f} ± {self.give_or_take_bytes / MIB:.1f}"


def _medians(values: Sequence[int], count: int) -> list[float]:
    """The medians of ``count`` stretches; garbage that waits for collection is the same in all."""
    if len(values) < 2 * _STRETCHES:
        raise ValueError(f"{len(values)} samples are too few to judge: let the soak run longer")
    edges = [len(values) * number // count for number in range(count + 1)]
    return [statistics.median(values[start:end]) for start, end in pairwise(edges)]


def trend(values: Sequence[int]) -> Trend:
    """The line through the medians of the second half, with the confidence that its own scatter allows.

    Neighbouring values are correlated, so fewer medians count as independent.
    """
    medians = _medians(values, 2 * _STRETCHES)[_STRETCHES:]
    slope, start = statistics.linear_regression(range(_STRETCHES), medians)
    apart = [value - start - slope * place for place, value in enumerate(medians)]
    scatter = sum(each * each for each in apart)
    alike = sum(one * next_one for one, next_one in pairwise(apart)) / scatter if scatter else 0.0
    alike = min(max(alike, 0.0), 0.9)
    width = _STRETCHES * (_STRETCHES**2 - 1) / 12
    error = math.sqrt(scatter / (_STRETCHES - 2) / width * (1 + alike) / (1 - alike))
    a_third = 2 * _STRETCHES / 3
    return Trend(slope * a_third, _CONFIDENCE * error * a_third)


def still_grows(values: Sequence[int]) -> bool:
    """Whether memory grows without levelling off.

    It does if the second half rises by more than its own scatter explains, the last third has grown by more than half
    of what the second had, and both sixths of the last third contribute. A cache that fills up grows less and less, a
    sawtooth returns to where it was, a step is over; a leak goes on.
    """
    first, second, last = _medians(values, 3)
    *_, before, next_to_last, end = _medians(values, 6)
    grown = last - second
    rise = trend(values)
    return (
        rise.bytes_a_third > rise.give_or_take_bytes
        and grown > max(NOISE_BYTES, (second - first) / 2)
        and min(next_to_last - before, end - next_to_last) > grown / 10
    )


def table(series: Mapping[str, Sequence[int]]) -> str:
    """One row in Markdown for each process, in MiB; one that died has nothing to compare."""
    samples = max(len(values) for values in series.values())
    rows = [
        "| part | start | 1st third | 2nd third | last third | end | highest | rise a third |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, values in sorted(series.items()):
        if len(values) < samples:
            rows.append(f"| {name} | died | | | | | | |")
            continue
        shown = (values[0], *_medians(values, 3), values[-1], max(values))
        rows.append(f"| {name} | {' | '.join(f'{value / MIB:.0f}' for value in shown)} | {trend(values)} |")
    return "\n".join(rows)


def findings(series: Mapping[str, Sequence[int]], is_judged: Callable[[str], bool] = lambda _: True) -> list[str]:
    """Problems, a sentence each; empty if every process survived and all judged ones levelled off."""
    samples = max(len(values) for values in series.values())
    wrong = []
    for name, values in sorted(series.items()):
        if len(values) < samples:
            wrong.append(f"{name} was seen {len(values)} of {samples} times: it died or was started in between")
        elif is_judged(name) and still_grows(values):
            wrong.append(f"{name} grows and does not level off: {trend(values)} MiB from one third to the next")
    return wrong
