"""How far above its prediction a job of a new source may be: a width beside that of its components, from first scores.

    python bench/job_width.py > bench/results/job-width.md
    python bench/job_width.py --write    also writes the width to core/memtune/memory/constants.py

docs/accuracy.md, Intervals, explains the method. A first score is what the formulas of its day predicted of a source
that nobody had looked at, so no later correction flatters it.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from accuracy_fit import predicted
from accuracy_rows import Row, read_rows
from first_scores import UNSEEN, FirstScore, read_scores

from memtune.memory.constants import DEFAULT_CONSTANTS
from memtune.memory.prediction import ADMISSION, Interval

CONSTANTS = Path(__file__).parents[1] / "core" / "memtune" / "memory" / "constants.py"
# Formulas before these missed new sources by up to 27% in the median, so that their misses say nothing of today's.
OLDEST = "7e22747b6e39"
_LEVELS = (0.8, 0.9, ADMISSION, 0.975)
# No truth was above its bound by more than that: three times the prediction.
_WIDEST = 4.0
_PRECISION = 1e-4


@dataclass(frozen=True)
class Miss:
    """A row and its first score."""

    row: Row
    score: FirstScore

    @cached_property
    def needed(self) -> float:
        """The least width of a job with which the truth would not have been above its bound."""
        if not self.is_above(0.0):
            return 0.0
        low, high = 0.0, _WIDEST
        while high - low > _PRECISION:
            middle = (low + high) / 2
            low, high = (middle, high) if self.is_above(middle) else (low, middle)
        return high

    def with_width(self, width: float) -> Interval:
        """Today's interval with a width of a job, moved to the first prediction."""
        found = predicted(self.row, replace(DEFAULT_CONSTANTS, job_width=width))
        return Interval(*(self.score.expected * bound / found.expected for bound in found))

    def is_above(self, width: float) -> bool:
        """Whether the truth is above its bound with a width of a job."""
        return self.score.measured > self.with_width(width).upper

    @property
    def is_nameable(self) -> bool:
        """Whether plans have all that the row does: they know no tensor, pipeline or context parallelism."""
        recipe = self.row.recipe
        return recipe.tensor_parallel * recipe.pipeline_parallel * recipe.context_parallel == 1


def misses() -> list[Miss]:
    """Every row whose first score is not older than the oldest formulas, in the order of scoring."""
    rows = {row.id: row for row in read_rows(UNSEEN)[0]}
    scores = read_scores()
    formulas = list(dict.fromkeys(score.formulas for score in scores))
    known = formulas[formulas.index(OLDEST) :]
    return [Miss(row, score) for score in scores if score.formulas in known and (row := rows.get(score.id)) is not None]


def by_source(rows: Iterable[Miss]) -> dict[str, list[Miss]]:
    """The rows of each source."""
    found: dict[str, list[Miss]] = {}
    for each in rows:
        found.setdefault(each.row.source, []).append(each)
    return found


def shared(groups: Sequence[Sequence[float]]) -> float:
    """The part of the variance that the values of a group share, by a one-way analysis of variance."""
    total, freedom = sum(map(len, groups)), len(groups) - 1
    middle = statistics.mean(each for own in groups for each in own)
    around = sum(len(own) * (statistics.mean(own) - middle) ** 2 for own in groups)
    inside = sum(len(own) * statistics.pvariance(own) for own in groups)
    if not freedom or total == len(groups) or not around + inside:
        return 1.0
    between, within = around / freedom, inside / (total - len(groups))
    count = (total - sum(len(own) ** 2 for own in groups) / total) / freedom
    return max((between - within) / (between + (count - 1) * within), 0.0)


def independent(rows: Sequence[Miss], share: float) -> float:
    """How many independent rows tell as much as these, if the rows of a source share so much (Kish's design effect)."""
    squares = sum(len(own) ** 2 for own in by_source(rows).values())
    return len(rows) / (1 + (squares / len(rows) - 1) * share)


def share_above(rows: Sequence[Miss], level: float = ADMISSION) -> float:
    """How much the rows of a source share whether they are above their bound."""
    limit = width(rows, level)
    return shared([[float(each.needed > limit) for each in own] for own in by_source(rows).values()])


def width(rows: Iterable[Miss], level: float = ADMISSION) -> float:
    """The least half-width upwards with which this share of the rows that plans could name is not above its bound."""
    needed = sorted(each.needed for each in rows if each.is_nameable)
    return math.ceil(1000 * needed[math.ceil(level * len(needed)) - 1]) / 1000


class Held(NamedTuple):
    """A row with its interval by a width that never saw its source."""

    miss: Miss
    interval: Interval

    @property
    def is_above(self) -> bool:
        """Whether the truth is above the upper bound."""
        return self.miss.score.measured > self.interval.upper

    @property
    def is_below(self) -> bool:
        """Whether the truth is below the lower bound."""
        return self.miss.score.measured < self.interval.lower


def held_out(rows: Sequence[Miss], level: float = ADMISSION) -> list[Held]:
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


def _is_split(row: Row) -> bool:
    recipe = row.recipe
    shards = max(recipe.weight_shards, recipe.gradient_shards, recipe.state_shards)
    return shards > 1 or recipe.backend == "fsdp" or recipe.has_bucket


def _is_quantized(row: Row) -> bool:
    return row.recipe.base_bytes < row.recipe.frozen_bytes


# Every row is of one kind. Groups overlap.
KINDS: Mapping[str, Callable[[Row], bool]] = {
    "full training, whole states": lambda row: not _is_split(row) and not row.shape.has_adapter,
    "adapter, quantized base": lambda row: not _is_split(row) and _is_quantized(row),
    "adapter, other base": lambda row: not _is_split(row) and row.shape.has_adapter and not _is_quantized(row),
    "states, gradients or weights in shards": _is_split,
}
_GROUPS: Mapping[str, Callable[[Row], bool]] = {
    "expandable segments": lambda row: row.recipe.expandable_segments,
    "default allocator": lambda row: not row.recipe.expandable_segments,
    "something unknown": lambda row: row.recipe.unknowns > 0,
    "all is known": lambda row: row.recipe.unknowns == 0,
}


def by_chance(held: Sequence[Held], rate: float, share: float) -> float:
    """The standard error of these rows' rate above their bounds, if it were a common rate."""
    return math.sqrt(rate * (1 - rate) / independent([each.miss for each in held], share))


def apart(kinds: Sequence[Sequence[Held]], share: float) -> float:
    """The standard deviation of the kinds' rates above their bounds beyond chance."""
    rate = statistics.mean(each.is_above for own in kinds for each in own)
    rates = [statistics.mean(each.is_above for each in own) for own in kinds]
    chance = statistics.mean(by_chance(own, rate, share) ** 2 for own in kinds)
    return math.sqrt(max(statistics.variance(rates) - chance, 0.0))


_HEAD = "sources | rows | above by components alone | above upper | by source | below lower | width |"


def _cells(held: Sequence[Held]) -> str:
    plain = sum(each.miss.needed > 0 for each in held)
    above, below = sum(each.is_above for each in held), sum(each.is_below for each in held)
    return (
        f"| {len(by_source(each.miss for each in held))} | {len(held)} | {plain} ({plain / len(held):.0%}) "
        f"| {above} ({above / len(held):.1%}) | {rate_above(held):.1%} | {below} ({below / len(held):.0%}) "
        f"| {_median_width(held):.2f} |"
    )


def _median_width(held: Iterable[Held]) -> float:
    return statistics.median(each.interval.width for each in held)


def rolling(rows: Sequence[Miss]) -> Iterator[str]:
    """Each round with the width that all rounds before it tell."""
    formulas = list(dict.fromkeys(each.score.formulas for each in rows))
    yield f"| formulas | width of a job | {_HEAD}"
    yield "|---|" + "--:|" * 8
    for number, name in enumerate(formulas[1:], start=1):
        found = width([each for each in rows if each.score.formulas in formulas[:number]])
        own = [Held(each, each.with_width(found)) for each in rows if each.score.formulas == name]
        yield f"| {own[0].miss.score.scored_on}, {name} | {found:.1%} {_cells(own)}"


def _prices(rows: Sequence[Miss]) -> Iterator[str]:
    """The cost of other levels."""
    yield "| level | width of a job | above upper, by row | by source | width |"
    yield "|--:|--:|--:|--:|--:|"
    for level in _LEVELS:
        held = held_out(rows, level)
        by_row = statistics.mean(each.is_above for each in held)
        yield (
            f"| {level:.1%} | {width(rows, level):.1%} | {by_row:.1%} | {rate_above(held):.1%} "
            f"| {_median_width(held):.2f} |"
        )


def page(rows: Sequence[Miss]) -> list[str]:
    """The page."""
    held = held_out(rows)
    nameable = [each for each in held if each.miss.is_nameable]
    share = share_above([each.miss for each in nameable])
    kinds = [[each for each in nameable if is_kind(each.miss.row)] for is_kind in KINDS.values()]
    rate = statistics.mean(each.is_above for each in nameable)
    lines = [
        "# How far above its prediction a job of a new source may be",
        "",
        "Made by `python bench/job_width.py`; [docs/accuracy.md](../../docs/accuracy.md#intervals) has the method.",
        "Every row is judged around its first score, by a width that its source had no part in. *By source* weighs",
        "every source the same. *Chance* is the standard error of the rate, if all kinds had one.",
        "",
        "Each round with the width that the rounds before it tell:",
        "",
        *rolling(rows),
        "",
        "Each source with the width that all others tell, by kinds of jobs:",
        "",
        f"| kind | chance | {_HEAD}",
        "|---|" + "--:|" * 8,
    ]
    lines += [
        f"| {name} | {by_chance(own, rate, share):.1%} {_cells(own)}" for name, own in zip(KINDS, kinds, strict=True)
    ]
    lines += [
        "",
        f"Beyond chance, the rates of the kinds have a standard deviation of {apart(kinds, share):.1%}.",
        "",
        f"| group | {_HEAD}",
        "|---|" + "--:|" * 7,
    ]
    for name, is_member in _GROUPS.items():
        lines.append(f"| {name} {_cells([each for each in nameable if is_member(each.miss.row)])}")
    lines.append(f"| tensor, pipeline, context parallelism {_cells([e for e in held if not e.miss.is_nameable])}")
    lines += [f"| all {_cells(held)}", "", *_prices(rows), "", f"| source | {_HEAD}", "|---|" + "--:|" * 7]
    for source in by_source(rows):
        lines.append(f"| {source} {_cells([each for each in held if each.miss.row.source == source])}")
    above = 100 * statistics.mean(each.is_above for each in held)
    below = 100 * statistics.mean(each.is_below for each in held)
    lines += [
        "",
        f"Half-width upwards: {width(rows):.1%}. Rows of a source share {share:.0%} of being above, so that "
        f"{len(nameable)} rows tell as much as {independent([each.miss for each in nameable], share):.0f}.",
        "",
        f"sources={len(by_source(rows))} rows={len(rows)} "
        f"above={above:.2f} above_by_source={100 * rate_above(held):.2f} below={below:.2f} "
        f"width={_median_width(held):.3f}",
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
