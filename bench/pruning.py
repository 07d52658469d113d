"""Savings from pruning probes: the operator's search with and without it, on the tables of `search.py`.

OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/pruning.py > bench/results/pruning.md
"""

from __future__ import annotations

import statistics
from random import Random

from search_methods import Hunt, memtune
from search_tables import CASES, Case, table_of

COMMAND = "OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/pruning.py > bench/results/pruning.md"
SEEDS = 20
STEPS = (3, 10, 30)

NOTES = f"""
Both searches meet the same tables, with {SEEDS} seeds each, and are left alone until the operator's rules end them. The
tables are modelled, as in search.md, and so is what a probe costs: 30 s for its start, 5 s for its end, and its
shortened steps. A step differs from the probe's speed by 5% (standard deviation of the logarithm), which is assumed.
The saving is of the GPU-seconds of all searches together; a search that is told less of a slow plan may go another way.

Most of a short probe is its start, which nothing saves. Of the default's 3 steps only the last one can be left out;
longer probes, which `tuning.probeSteps` asks for, lose more of their steps."""


def hunted(case: Case, seed: int, steps: int, prunes: bool) -> Hunt:
    """One search that ends by the operator's rules."""
    name = f"{case.size}/{seed}"
    hunt = Hunt(table_of(case.workload, Random(name)), Random(f"{name}/probes"), True, steps=steps, prunes=prunes)
    memtune(hunt)
    return hunt


def line(steps: int) -> str:
    """With and without pruning, at a number of steps per probe."""
    whole, early = (
        [hunted(case, seed, steps, prunes) for case in CASES for seed in range(SEEDS)] for prunes in (False, True)
    )
    spent, left = (sum(hunt.gpu_seconds for hunt in hunts) for hunts in (whole, early))
    outcomes = [outcome for hunt in early for outcome in hunt.outcomes if not outcome.died]
    shares = [sorted(hunt.share for hunt in hunts) for hunts in (whole, early)]
    probes = [statistics.mean(len(hunt.plans) for hunt in hunts) for hunts in (whole, early)]
    cells = (
        f"{sum(outcome.steps < steps for outcome in outcomes) / len(outcomes):.0%}",
        " / ".join(f"{each:.2f}" for each in probes),
        f"{spent:,.0f} / {left:,.0f}",
        f"{1 - left / spent:.1%}",
        " / ".join(f"{statistics.mean(each):.2%}" for each in shares),
        " / ".join(f"{each[0]:.1%}" for each in shares),
    )
    return f"| {steps} | {' | '.join(cells)} |"


def main() -> None:
    """Print one line for each length of a probe."""
    print(f"# What it saves to end probes early\n\nMade by `{COMMAND}`.\n")
    print("Where there are two numbers, the first is without and the second with early ends.\n")
    print("| steps | ended early | probes, mean | GPU-seconds | saved | share of the best throughput, mean | worst |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for steps in STEPS:
        print(line(steps))
    print(NOTES)


if __name__ == "__main__":
    main()
