"""Accuracy of memory predictions on published measured peaks.

    python bench/accuracy.py FILE.csv [--leave-one-source-out] [--quality A]

Prints a table by source and one by model family, next to the results of published rules of thumb for the same rows. The
last line is machine-readable: percentages, and the width as a ratio of upper to lower.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from accuracy_baselines import BASELINES
from accuracy_fit import fit, predicted
from accuracy_rows import Row, read_rows

from memtune.memory.constants import DEFAULT_CONSTANTS, FITTED, Constants
from memtune.memory.prediction import Interval


class Scored(NamedTuple):
    """A row and its prediction."""

    row: Row
    interval: Interval

    @property
    def error(self) -> float:
        """Absolute relative error."""
        return abs(self.interval.expected / self.row.peak_bytes - 1)

    @property
    def is_under(self) -> bool:
        """Whether the truth is above the upper bound."""
        return self.row.peak_bytes > self.interval.upper


def score(rows: Sequence[Row], leave_one_source_out: bool) -> tuple[list[Scored], dict[str, Constants]]:
    """Predict every row, optionally with constants that never saw its source."""
    sources = sorted({row.source for row in rows})
    constants = {
        source: fit([row for row in rows if row.source != source]) if leave_one_source_out else DEFAULT_CONSTANTS
        for source in sources
    }
    return [Scored(row, predicted(row, constants[row.source])) for row in rows], constants


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile of the values at a share, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def binomial_upper(hits: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided Clopper-Pearson bound: the rate at which so few hits have a probability of 1 - confidence."""
    if hits >= trials:
        return 1.0
    low, high = hits / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        chance = sum(math.comb(trials, k) * middle**k * (1 - middle) ** (trials - k) for k in range(hits + 1))
        low, high = (middle, high) if chance > 1 - confidence else (low, middle)
    return high


def summary(scored: Sequence[Scored]) -> str:
    """The machine-readable line."""
    errors = [one.error for one in scored]
    under = sum(one.is_under for one in scored)
    return (
        f"n={len(scored)} median_ape={100 * statistics.median(errors):.2f} p90_ape={100 * quantile(errors, 0.9):.2f} "
        f"under_rate={100 * under / len(scored):.2f} under_rate_95={100 * binomial_upper(under, len(scored)):.2f} "
        f"width={statistics.median(one.interval.width for one in scored):.3f}"
    )


def table(
    scored: Sequence[Scored],
    title: str,
    key: Callable[[Row], str],
    published: Mapping[str, Callable[[Row], float]] = BASELINES,
) -> list[str]:
    """One line per group: our errors, and the median error of each published rule."""
    names = list(published)
    lines = [
        f"| {title} | n | median | p90 | under | width |" + "".join(f" {n} median |" for n in names),
        "|---|" + "--:|" * (5 + len(names)),
    ]
    for group in [*sorted({key(one.row) for one in scored}), "all"]:
        rows = [one for one in scored if group in ("all", key(one.row))]
        errors = [one.error for one in rows]
        rules = [[abs(published[n](one.row) / one.row.peak_bytes - 1) for one in rows] for n in names]
        cells = [
            group,
            str(len(rows)),
            f"{statistics.median(errors):.1%}",
            f"{quantile(errors, 0.9):.1%}",
            str(sum(one.is_under for one in rows)),
            f"{statistics.median(one.interval.width for one in rows):.2f}",
            *(f"{statistics.median(rule):.1%}" for rule in rules),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def misses(scored: Sequence[Scored]) -> list[str]:
    """The rows that are off by more than a fifth, or above their upper bound."""
    lines = ["| row | metric | measured GB | lower | expected | upper | error |", "|---|---|--:|--:|--:|--:|--:|"]
    for row, interval in sorted(scored, key=lambda one: -one.error):
        error = interval.expected / row.peak_bytes - 1
        if abs(error) > 0.2 or row.peak_bytes > interval.upper:
            sizes = " | ".join(f"{size / 1e9:.2f}" for size in (row.peak_bytes, *interval))
            lines.append(f"| {row.id} | {row.metric} | {sizes} | {error:+.1%} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit code 2 and one sentence on bad input."""
    parser = argparse.ArgumentParser(description="Score the memory prediction on published measured peaks.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--leave-one-source-out", action="store_true", help="never score a constant on its own source")
    parser.add_argument("--quality", choices=["A", "B"], help="only rows of this quality")
    options = parser.parse_args(arguments)
    try:
        found, remarks = read_rows(options.file)
    except (OSError, ValueError) as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return 2
    for remark in remarks:
        print(f"accuracy: {remark}", file=sys.stderr)
    rows = [row for row in found if options.quality in (None, row.quality)]
    if not rows:
        print(f"accuracy: {options.file}: no row of quality {options.quality}", file=sys.stderr)
        return 2
    scored, constants = score(rows, options.leave_one_source_out)
    print("\n".join(table(scored, "source", lambda row: row.source)), end="\n\n")
    print("\n".join(table(scored, "family", lambda row: row.family)), end="\n\n")
    print("\n".join(misses(scored)), end="\n\n")
    for source, used in constants.items():
        values = ", ".join(f"{name} {getattr(used, name):.3g}" for name in FITTED)
        print(f"constants for {source}: {values}")
    print(f"\n{summary(scored)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
