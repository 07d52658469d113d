"""First scores: a source never looked at before, scored once with the current formulas and constants.

    python bench/first_scores.py SOURCE    scores the rows of SOURCE in bench/data/unseen_memory.csv
    python bench/first_scores.py           prints the page of all first scores

No formula is ever fitted on these rows. A source that has its first score is refused, and so are uncommitted formulas:
the commit is stored with the score.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from accuracy import binomial_upper, quantile
from accuracy_fit import predicted
from accuracy_rows import Row, read_rows

from memtune.memory.constants import DEFAULT_CONSTANTS

ROOT = Path(__file__).parents[1]
UNSEEN = ROOT / "bench" / "data" / "unseen_memory.csv"
SCORES = ROOT / "bench" / "data" / "first_scores.csv"
# The files that a prediction of a published row depends on.
FORMULAS = ("core/memtune", *(f"bench/accuracy_{part}.py" for part in ("rows", "cells", "shapes", "fit")))
_ENOUGH = 50
INTRODUCTION = """# First scores on sources that nobody had looked at

```
python bench/first_scores.py > bench/results/first-scores.md
```

Each source below was added to [bench/data/unseen_memory.csv](../data/unseen_memory.csv) and scored once, with the
formulas and constants of the commit beside it. These scores never change: corrections show in the scores of later
sources. No constant of a formula is fitted on these rows. [docs/accuracy.md](../../docs/accuracy.md) has the protocol,
and [accuracy-history.md](accuracy-history.md) what each round showed.

Four rows of peft were withdrawn after their score, since that repository is one of the fitted sources: they were 21%,
55%, 63% and 65% too high. With them, the round of 201aba793807 would have 83 rows, a median of 5.5%, a 90th percentile
of 34.3%, 6.0% above the upper bound, and a width of 1.50.
"""


class FirstScore(NamedTuple):
    """The prediction for a row when its source was first scored."""

    source: str
    id: str
    metric: str
    measured: int
    lower: int
    expected: int
    upper: int
    formulas: str
    scored_on: str

    @property
    def error(self) -> float:
        """Absolute relative error."""
        return abs(self.expected / self.measured - 1)

    @property
    def is_above(self) -> bool:
        """Whether the truth is above the upper bound."""
        return self.measured > self.upper


def read_scores(path: Path = SCORES) -> list[FirstScore]:
    """Every stored first score, in the order of scoring."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            FirstScore(
                source=line["source"],
                id=line["id"],
                metric=line["metric"],
                measured=int(line["measured"]),
                lower=int(line["lower"]),
                expected=int(line["expected"]),
                upper=int(line["upper"]),
                formulas=line["formulas"],
                scored_on=line["scored_on"],
            )
            for line in csv.DictReader(file)
        ]


def first_scores(source: str, rows: Sequence[Row], kept: Sequence[FirstScore], formulas: str) -> list[FirstScore]:
    """Score a source that has no scores yet."""
    if source in {score.source for score in kept}:
        raise ValueError(f"{source} has its first score already, and there is no second one")
    found = [row for row in rows if row.source == source]
    if not found:
        raise ValueError(f"no row of {source}; known are {', '.join(sorted({row.source for row in rows}))}")
    scores = []
    for row in found:
        interval = predicted(row, DEFAULT_CONSTANTS)
        bounds = (round(interval.lower), round(interval.expected), round(interval.upper))
        scores.append(
            FirstScore(source, row.id, row.metric, row.peak_bytes, *bounds, formulas, date.today().isoformat())
        )
    return scores


def committed_formulas() -> str:
    """The last commit that changed what predictions depend on."""
    changed = _git("status", "--porcelain", "--", *FORMULAS)
    if changed:
        raise ValueError(f"commit the formulas before a source is scored: {changed}")
    return _git("log", "-1", "--format=%H", "--", *FORMULAS)[:12]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def keep(scores: Sequence[FirstScore], path: Path = SCORES) -> None:
    """Append scores to the file, which is append-only."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(FirstScore._fields)
        writer.writerows(scores)


def summary(scores: Sequence[FirstScore]) -> str:
    """The machine-readable line."""
    above = sum(score.is_above for score in scores)
    errors = [score.error for score in scores]
    return (
        f"n={len(scores)} sources={len({score.source for score in scores})} "
        f"median_ape={100 * statistics.median(errors):.2f} p90_ape={100 * quantile(errors, 0.9):.2f} "
        f"above_upper={100 * above / len(scores):.2f} above_upper_95={100 * binomial_upper(above, len(scores)):.2f} "
        f"width={statistics.median(score.upper / score.lower for score in scores):.3f}"
    )


def newest(scores: Sequence[FirstScore]) -> list[FirstScore]:
    """The scores by the newest formulas, and by those before until they are enough for a 90th percentile."""
    found: list[FirstScore] = []
    for formulas in dict.fromkeys(score.formulas for score in reversed(scores)):
        found = [score for score in scores if score.formulas == formulas] + found
        if len(found) >= _ENOUGH:
            break
    return found


def _line(name: str, scores: Sequence[FirstScore], *more: str) -> str:
    errors = [score.error for score in scores]
    above = sum(score.is_above for score in scores)
    cells = [
        name,
        str(len(scores)),
        f"{statistics.median(errors):.1%}",
        f"{quantile(errors, 0.9):.1%}",
        f"{statistics.median(score.expected / score.measured - 1 for score in scores):+.1%}",
        f"{above} ({above / len(scores):.0%})",
        f"{statistics.median(score.upper / score.lower for score in scores):.2f}",
        *more,
    ]
    return "| " + " | ".join(cells) + " |"


_HEAD = "| n | median | p90 | median of predicted / measured - 1 | above upper | width |"


def rounds(scores: Sequence[FirstScore]) -> list[str]:
    """The table of rounds: sources that were scored with the same formulas."""
    lines = [f"| formulas | sources {_HEAD}", "|---|--:|" + "--:|" * 6]
    for formulas in dict.fromkeys(score.formulas for score in scores):
        own = [score for score in scores if score.formulas == formulas]
        sources = len({score.source for score in own})
        lines.append(_line(f"{own[0].scored_on}, {formulas} | {sources}", own))
    return [*lines, _line(f"all | {len({score.source for score in scores})}", scores)]


def page(scores: Sequence[FirstScore]) -> str:
    """The page of all first scores."""
    sources = list(dict.fromkeys(score.source for score in scores))
    lines = [
        INTRODUCTION,
        *rounds(scores),
        "",
        f"| source {_HEAD} formulas | scored on |",
        "|---|" + "--:|" * 6 + "---|---|",
    ]
    for source in sources:
        own = [score for score in scores if score.source == source]
        lines.append(_line(source, own, own[0].formulas, own[0].scored_on))
    lines += [_line("all", scores, "", ""), "", f"| metric {_HEAD}", "|---|" + "--:|" * 6]
    for metric in sorted({score.metric for score in scores}):
        lines.append(_line(metric, [score for score in scores if score.metric == metric]))
    lines += ["", "Every row:", "", "| row | metric | measured GB | lower | expected | upper | error |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|")
    for score in scores:
        sizes = " | ".join(f"{size / 1e9:.2f}" for size in (score.measured, score.lower, score.expected, score.upper))
        mark = ", above upper" if score.is_above else ""
        lines.append(f"| {score.id} | {score.metric} | {sizes} | {score.expected / score.measured - 1:+.1%}{mark} |")
    lines += ["", f"Of the newest {len(newest(scores))}:", "", summary(newest(scores))]
    return "\n".join([*lines, "", "Of all:", "", summary(scores)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Score one source, or print the page; exit code 2 and one sentence on bad input."""
    parser = argparse.ArgumentParser(description="Score a source that nobody has looked at, once.")
    parser.add_argument("source", nargs="?", help="the source's name, as bench/accuracy.py prints it")
    options = parser.parse_args(arguments)
    kept = read_scores() if SCORES.exists() else []
    if options.source is None:
        print(page(kept))
        return 0
    rows, remarks = read_rows(UNSEEN)
    for remark in remarks:
        print(f"first_scores: {remark}", file=sys.stderr)
    try:
        scores = first_scores(options.source, rows, kept, committed_formulas())
    except ValueError as error:
        print(f"first_scores: {error}", file=sys.stderr)
        return 2
    keep(scores)
    print(summary(scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
