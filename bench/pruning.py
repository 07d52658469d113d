"""The savings of ending probes early: the operator's search with and without them, on the tables of `search.py`.

OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/pruning.py > bench/results/pruning.md
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from random import Random

from search import Job, left_alone, modelled, ninetieth, published
from search_methods import Hunt
from step_times import durations, recordings

from memtune.api.tuning import Tuning
from memtune.wire.probe_pruning import STEADY_STEPS, Step, steady

COMMAND = "OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/pruning.py > bench/results/pruning.md"
SEEDS = 20
STEPS = (STEADY_STEPS, Tuning().probe_steps, 30)
_READINGS = 10_000

NOTES = f"""
Where there are two numbers, the first is without and the second with early ends: of probes that can no longer win, and
of probes of which two steps in a row took the same time. Both searches meet the same tables and are left alone until
the operator's rules end them; the saving is of the GPU-seconds of all searches together. A search that is told less of
a slow plan may go another way.

What a probe costs is modelled: 30 s for its start, 5 s for its end, and its shortened steps. How the durations of its
steps differ was recorded in {len(recordings())} trainings on 8 H100 ([step_times.csv](../data/README.md)). The tables
are those of [search.md](search.md).

A probe of {STEPS[0]} steps can leave out the last one only. {STEPS[1]} are the default.
""".strip()

READING_NOTES = f"""
How far the step time that a probe reports, the median of its steps but the first, is from the recording's:
{_READINGS:,} probes that begin anywhere in a recording. A probe of {STEPS[0]} steps has two, and no means to tell which
one is wrong.
""".strip()


def line(jobs: Sequence[Job], seeds: int, steps: int) -> str:
    """With and without early ends, at a number of steps per probe."""
    whole, early = (
        [left_alone(job, seed, steps=steps, prunes=prunes) for job in jobs for seed in range(seeds)]
        for prunes in (False, True)
    )
    spent, left = (sum(hunt.gpu_seconds for hunt in hunts) for hunts in (whole, early))
    cells = (
        " / ".join(f"{steps_of(hunts):.1f}" for hunts in (whole, early)),
        " / ".join(f"{statistics.mean(len(hunt.plans) for hunt in hunts):.2f}" for hunts in (whole, early)),
        f"{spent:,.0f} / {left:,.0f}",
        f"{1 - left / spent:.1%}",
        " / ".join(f"{statistics.mean(hunt.share for hunt in hunts):.2%}" for hunts in (whole, early)),
        " / ".join(f"{min(hunt.share for hunt in hunts):.1%}" for hunts in (whole, early)),
    )
    return f"| {steps} | {' | '.join(cells)} |"


def steps_of(hunts: Sequence[Hunt]) -> float:
    """The mean number of steps of the probes that had the memory for them."""
    return statistics.mean(outcome.steps for hunt in hunts for outcome in hunt.outcomes if not outcome.died)


def read(random: Random, steps: int, ends_early: bool) -> tuple[float, int]:
    """By how much one probe misjudges a step of a recorded training, and how many steps it makes for that."""
    each = durations(random, steps - 1)
    if ends_early:
        seen = [Step(0.0, 1, seconds) for seconds in each]
        enough = (number for number in range(2, steps) if steady(seen[:number]))
        each = each[: next(enough, len(each))]
    return abs(statistics.median(each) - 1), len(each) + 1


def reading(steps: int, ends_early: bool) -> str:
    """How exact such probes are."""
    random = Random(0)
    readings = [read(random, steps, ends_early) for _ in range(_READINGS)]
    errors = [error for error, _ in readings]
    cells = (
        f"{'at most ' * ends_early}{steps}",
        f"{statistics.mean(made for _, made in readings):.1f}",
        f"{statistics.mean(errors):.2%}",
        f"{ninetieth(errors):.2%}",
        f"{sum(error > 0.05 for error in errors) / len(errors):.1%}",
    )
    return f"| {' | '.join(cells)} |"


def print_lines(jobs: Sequence[Job]) -> None:
    """One line for each length of a probe."""
    print("\n| steps | made, mean | probes, mean | GPU-seconds | saved | share of the best throughput, mean | worst |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for steps in STEPS:
        print(line(jobs, SEEDS, steps))


def main() -> None:
    """Print the parts: published measurements, modelled tables, and how exact short probes are."""
    measured, drawn = published(), modelled(1.0)
    print(f"# What it saves to end probes early\n\nMade by `{COMMAND}`.\n\n{NOTES}")
    print(f"\n## Published measurements: {len(measured)} jobs, {SEEDS} seeds")
    print_lines(measured)
    print(f"\n## Modelled tables: {len(drawn)} jobs, {SEEDS} seeds")
    print_lines(drawn)
    print(f"\n## How exact short probes are\n\n{READING_NOTES}\n")
    print("| steps | made, mean | error, mean | 90th percentile | more than 5% |\n|--:|--:|--:|--:|--:|")
    for steps, ends_early in ((STEPS[0], False), *((steps, early) for steps in STEPS[1:] for early in (False, True))):
        print(reading(steps, ends_early))


if __name__ == "__main__":
    main()
