"""How the memory of the cluster's processes went during a soak, and which of them never levelled off."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

MIB = 1 << 20
# Garbage collectors give memory back late, so the memory of an idle program goes up and down by about this much.
NOISE_SHARE = 0.05
NOISE_BYTES = 8 * MIB


def thirds(values: Sequence[int]) -> tuple[float, float, float]:
    """The median of each third: a sawtooth that comes back to where it was has three equal ones."""
    if len(values) < 3:
        raise ValueError(f"{len(values)} samples have no thirds: let the soak run longer")
    third = len(values) // 3
    first, second, last = values[:third], values[third:-third], values[-third:]
    return statistics.median(first), statistics.median(second), statistics.median(last)


def still_grows(values: Sequence[int]) -> bool:
    """Whether memory grew from the second third to the last, and by more than half of what it grew before that.

    A cache that fills up grows less and less; a leak grows in the last third as much as in the one before.
    """
    first, second, last = thirds(values)
    grown = last - second
    return grown > max(NOISE_SHARE * second, NOISE_BYTES) and grown > (second - first) / 2


def table(series: Mapping[str, Sequence[int]]) -> str:
    """One row in Markdown for each process, in MiB; of one that died there is nothing to compare."""
    samples = max(len(values) for values in series.values())
    rows = ["| part | start | 1st third | 2nd third | last third | end | highest |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, values in sorted(series.items()):
        if len(values) < samples:
            rows.append(f"| {name} | died | | | | | |")
            continue
        shown = (values[0], *thirds(values), values[-1], max(values))
        rows.append(f"| {name} | {' | '.join(f'{value / MIB:.0f}' for value in shown)} |")
    return "\n".join(rows)


def findings(series: Mapping[str, Sequence[int]]) -> list[str]:
    """What is wrong, a sentence each; empty when every process lived throughout and levelled off."""
    samples = max(len(values) for values in series.values())
    wrong = []
    for name, values in sorted(series.items()):
        if len(values) < samples:
            wrong.append(f"{name} was seen {len(values)} of {samples} times: it died or was started in between")
        elif still_grows(values):
            wrong.append(f"{name} still grew in the last third, and no less than before")
    return wrong
