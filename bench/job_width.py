"""The uncertainty of a job from a new source: a width beside that of its components, calibrated on published peaks.

    python bench/job_width.py > bench/results/job-width.md
    python bench/job_width.py --write    also writes the width to core/memtune/memory/constants.py

docs/accuracy.md, Intervals, explains the method. Formulas and their constants are not fitted here. Sources that have
their first score by the newest formulas test the width, and have no part in it.
"""

from __future__ import annotations

import argparse
import math
import operator
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from accuracy import score
from accuracy_fit import predicted
from accuracy_rows import Row, read_rows
from first_scores import newest, read_scores

from memtune.memory.constants import Constants
from memtune.memory.prediction import BOUND, Interval

DATA = Path(__file__).parent / "data"
CONSTANTS = Path(__file__).parents[1] / "core" / "memtune" / "memory" / "constants.py"
# The normal distribution's 97.5% quantile: errors have heavier tails. At the 95% quantile, fewer than one row of twenty
# is above, but more than that where every source weighs the same (bench/results/job-width.md).
LEVEL = 1.96
_LEVELS = (0.0, 1.0, BOUND, LEVEL, 2.5, 3.0, 3.5, 4.0, 5.0)


class Miss(NamedTuple):
    """A row, its interval without the width of a job, and whether its source was scored before anybody looked at it."""

    row: Row
    constants: Constants
    interval: Interval
    is_unseen: bool

    @property
    def residual(self) -> float:
        """The logarithm of measured over predicted."""
        return math.log(self.row.peak_bytes / self.interval.expected)

    @property
    def spread(self) -> float:
        """The standard deviation that the components alone explain."""
        return math.log(self.interval.upper / self.interval.expected) / BOUND

    def with_width(self, width: float) -> Interval:
        """The interval with the width of a job."""
        return predicted(self.row, replace(self.constants, job_width=width))


def misses() -> list[Miss]:
    """Every row that a plan could name; fitted constants never saw their source."""
    found = []
    testing = {score.source for score in newest(read_scores())}
    for name, is_unseen in (("measured_memory.csv", False), ("unseen_memory.csv", True)):
        rows, _ = read_rows(DATA / name)
        _, constants = score(rows, leave_one_source_out=not is_unseen)
        for row in rows:
            if row.source in testing or not _is_nameable(row):
                continue
            plain = replace(constants[row.source], job_width=0.0)
            found.append(Miss(row, plain, predicted(row, plain), is_unseen))
    return found


def _is_nameable(row: Row) -> bool:
    """Whether plans have all that the row does: they know no tensor, pipeline or context parallelism."""
    return row.recipe.tensor_parallel * row.recipe.pipeline_parallel * row.recipe.context_parallel == 1


def by_source(rows: Iterable[Miss]) -> dict[str, list[Miss]]:
    """The rows of each source."""
    found: dict[str, list[Miss]] = {}
    for each in rows:
        found.setdefault(each.row.source, []).append(each)
    return found


def shared(sources: Sequence[Sequence[Miss]]) -> float:
    """The part of the variance of residuals that the rows of a source share, by a one-way analysis of variance."""
    total, freedom = sum(map(len, sources)), len(sources) - 1
    residuals = [[each.residual for each in own] for own in sources]
    middle = statistics.mean(each for own in residuals for each in own)
    around = sum(len(own) * (statistics.mean(own) - middle) ** 2 for own in residuals)
    inside = sum(len(own) * statistics.pvariance(own) for own in residuals)
    if not freedom or total == len(sources) or not around + inside:
        return 1.0
    between, within = around / freedom, inside / (total - len(sources))
    count = (total - sum(len(own) ** 2 for own in sources) / total) / freedom
    return max((between - within) / (between + (count - 1) * within), 0.0)


def weights(sources: Sequence[Sequence[Miss]]) -> list[float]:
    """How much each source counts: the inverse variance of the mean square of residuals that are normal."""
    square = shared(sources) ** 2
    return [len(own) / (1 + (len(own) - 1) * square) for own in sources]


def spread(rows: Iterable[Miss]) -> float:
    """The standard deviation of a new source's row that components do not explain."""
    sources = list(by_source(rows).values())
    unexplained = [max(statistics.mean(each.residual**2 - each.spread**2 for each in own), 0.0) for own in sources]
    counts = weights(sources)
    return math.sqrt(sum(map(operator.mul, counts, unexplained)) / sum(counts))


def width(rows: Sequence[Miss], level: float = LEVEL) -> float:
    """The half-width at so many standard deviations, by Student's distribution: few sources tell the deviation."""
    counts = weights(list(by_source(rows).values()))
    freedom = max(sum(counts) ** 2 / sum(count**2 for count in counts) - 1, 1)
    quantile = level + (level**3 + level) / (4 * freedom)
    return round(math.expm1(quantile * spread(rows)), 3)


class Held(NamedTuple):
    """A row with its interval by a width that never saw its source."""

    miss: Miss
    interval: Interval

    @property
    def is_above(self) -> bool:
        """Whether the truth is above the upper bound."""
        return self.miss.row.peak_bytes > self.interval.upper


def held_out(rows: Sequence[Miss], level: float = LEVEL) -> list[Held]:
    """Every row with the width of the other sources."""
    found = []
    for source, own in by_source(rows).items():
        others = width([each for each in rows if each.row.source != source], level)
        found += [Held(each, each.with_width(others)) for each in own]
    return found


def rate_above(held: Iterable[Held]) -> float:
    """The rate of rows above their upper bound; every source weighs the same, however many rows it has."""
    sources: dict[str, list[bool]] = {}
    for each in held:
        sources.setdefault(each.miss.row.source, []).append(each.is_above)
    return statistics.mean(statistics.mean(own) for own in sources.values())


def _line(name: str, held: Sequence[Held]) -> str:
    above = sum(each.is_above for each in held)
    after = statistics.median(each.interval.width for each in held)
    plain = sum(each.miss.row.peak_bytes > each.miss.interval.upper for each in held)
    before = statistics.median(each.miss.interval.width for each in held)
    return (
        f"| {name} | {len(by_source(each.miss for each in held))} | {len(held)} | {plain} ({plain / len(held):.0%}) "
        f"| {before:.2f} | {above} ({above / len(held):.0%}) | {rate_above(held):.0%} | {after:.2f} |"
    )


_HEAD = (
    "| sources | rows | above upper by components alone | width | above upper | by source | width |",
    "|---|" + "--:|" * 7,
)


def _prices(rows: Sequence[Miss]) -> Iterator[str]:
    """The cost of other levels, on the sources that were not in view at first."""
    yield "| standard deviations | above upper, by source | above upper, by row | width |"
    yield "|--:|--:|--:|--:|"
    for level in _LEVELS:
        held = [each for each in held_out(rows, level) if each.miss.is_unseen]
        by_row = statistics.mean(each.is_above for each in held)
        median = statistics.median(each.interval.width for each in held)
        yield f"| {level:.2f} | {rate_above(held):.1%} | {by_row:.1%} | {median:.2f} |"


def page(rows: Sequence[Miss]) -> list[str]:
    """The page."""
    held = held_out(rows)
    unseen = [each for each in held if each.miss.is_unseen]
    lines = [
        "# How far a job of a new source may be off",
        "",
        "Made by `python bench/job_width.py`; [docs/accuracy.md](../../docs/accuracy.md#intervals) has the method.",
        "Every row is scored with a width that its source had no part in. *By source* weighs every source the same.",
        "",
        f"| rows {_HEAD[0]}",
        _HEAD[1],
    ]
    for name, chosen in (
        ("expandable segments", [each for each in held if each.miss.row.recipe.expandable_segments]),
        ("default allocator", [each for each in held if not each.miss.row.recipe.expandable_segments]),
        ("something unknown", [each for each in held if each.miss.row.recipe.unknowns]),
        ("all is known", [each for each in held if not each.miss.row.recipe.unknowns]),
        ("in view", [each for each in held if not each.miss.is_unseen]),
        ("not in view at first", unseen),
        ("all", held),
    ):
        lines.append(_line(name, chosen))
    lines += ["", f"| source {_HEAD[0]}", _HEAD[1]]
    lines += [
        _line(source, [each for each in held if each.miss.row.source == source])
        for source in by_source(each.miss for each in held)
    ]
    lines += ["", *_prices(rows)]
    lines += [
        "",
        f"Standard deviation: {spread(rows):.3f}, half-width: {width(rows):.1%}. The rows of a source share "
        f"{shared(list(by_source(rows).values())):.0%} of the variance.",
        "",
        f"sources={len(by_source(rows))} rows={len(rows)} "
        f"unseen_above={100 * sum(each.is_above for each in unseen) / len(unseen):.2f} "
        f"unseen_above_by_source={100 * rate_above(unseen):.2f} "
        f"unseen_width={statistics.median(each.interval.width for each in unseen):.3f}",
    ]
    return lines


def write(found: float, path: Path = CONSTANTS) -> None:
    """Replace the width in the constants."""
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"(?m)^JOB_WIDTH = .*$", f"JOB_WIDTH = {found}", text), encoding="utf-8")


def main() -> int:
    """Print the page, and write the constants if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the width to the constants, too")
    options = parser.parse_args()
    rows = misses()
    print("\n".join(page(rows)))
    if options.write:
        write(width(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
