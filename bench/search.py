"""How many probes find a good plan: the operator's search against other samplers, tuners' orders and chance.

    OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/search.py > bench/results/search.md

On published measurements (search_published.py), emulated memory (search_emulated.py) and modelled tables
(search_tables.py), until a probe has measured a
plan that fits and reaches 97% of the throughput of the best such plan.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple, get_args

from search_emulated import GRIDS
from search_methods import Hunt, Method, composer_halving, deepspeed_order, grid_order, memtune, random_order
from search_notes import EMULATED_NOTES, METHOD_NOTES, MODELLED_NOTES, PUBLISHED_NOTES
from search_published import published_tables
from search_samplers import gp, tpe
from search_tables import CASES, Table, table_of

from memtune.api.tuning import Sampler, Tuning

COMMAND = "OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/search.py > bench/results/search.md"
SEEDS = 20
FAR = 2.0
OURS = "MemTune"
METHODS: dict[str, Method] = {
    OURS: memtune,
    "random": random_order,
    "grid": grid_order,
    "TPE": tpe,
    "GPSampler": gp,
    "DeepSpeed's order": deepspeed_order,
    "Composer's halving": composer_halving,
}
NEVER = float("inf")


class Job(NamedTuple):
    """One table of the benchmark: the same at each seed, or drawn for it."""

    name: str
    table: Callable[[int], Table]


class Score(NamedTuple):
    """The cost of one search. Without a good plan it counts as infinite, however early it gave up."""

    probes: float
    gpu_seconds: float
    died: int


Scores = dict[str, dict[str, list[Score]]]


class Target(NamedTuple):
    """A figure of MemTune's searches and its upper target."""

    name: str
    most: float
    of: Callable[[list[Score]], float]
    form: str


TARGETS = (
    Target("probes in the median", 2, lambda scores: statistics.median(each.probes for each in scores), "g"),
    Target("probes at the 90th percentile", 4, lambda scores: ninetieth(each.probes for each in scores), "g"),
    Target("out-of-memories a job", 0.3, lambda scores: statistics.mean(each.died for each in scores), ".2f"),
    Target("searches that find none", 0.05, lambda scores: 1 - found_share(scores), ".1%"),
)


def published() -> list[Job]:
    """Jobs with published measurements."""
    return [Job(each.job, lambda _, table=each.table: table) for each in published_tables()]  # type: ignore[misc]


def emulated() -> list[Job]:
    """Jobs whose memory was emulated."""
    return [Job(grid.name, grid.table) for grid in GRIDS]


def modelled(reach: float) -> list[Job]:
    """Jobs whose truth is drawn around the prediction."""
    return [
        Job(
            f"{case.size} on {case.workload.world} x {case.workload.gpu.name}",
            lambda seed, case=case: table_of(case.workload, Random(f"{case.size}/{seed}"), reach),  # type: ignore[misc]
        )
        for case in CASES
    ]


def hunted(job: Job, method: Method, seed: int) -> Hunt:
    """One search. Every method meets the same truth at the same seed."""
    hunt = Hunt(job.table(seed), Random(f"{job.name}/{seed}/probes"))
    method(hunt)
    return hunt


def left_alone(job: Job, seed: int, sampler: str = OURS, steps: int | None = None, prunes: bool = False) -> Hunt:
    """The operator's search until its own rules end it, since it cannot know when it found a good plan."""
    name = f"{job.name}/{seed}"
    hunt = Hunt(job.table(seed), Random(f"{name}/probes"), True, Tuning().max_probes, sampler, name, steps, prunes)
    memtune(hunt)
    return hunt


def scored(hunt: Hunt) -> Score:
    """The figures of a finished search."""
    if not hunt.found:
        return Score(NEVER, NEVER, hunt.died)
    return Score(len(hunt.plans), hunt.gpu_seconds, hunt.died)


def compared(jobs: Sequence[Job], methods: dict[str, Method], seeds: int) -> Scores:
    """The methods on every table."""
    return {
        job.name: {
            name: [scored(hunted(job, method, seed)) for seed in range(seeds)] for name, method in methods.items()
        }
        for job in jobs
    }


def middle(scores: Iterable[Score], of: Callable[[Score], float]) -> str:
    """The median over searches, formatted for a table."""
    return shown(statistics.median(of(score) for score in scores))


def shown(value: float) -> str:
    """A figure, formatted for a table."""
    return "never" if value == NEVER else f"{value:,.1f}".removesuffix(".0")


def ninetieth(values: Iterable[float]) -> float:
    """The 90th percentile."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * 9 // 10) - 1]


def found_share(scores: list[Score]) -> float:
    """The share of searches that found a good plan."""
    return sum(score.probes < NEVER for score in scores) / len(scores)


def all_of(scores: Scores, name: str) -> list[Score]:
    """The searches of one method on all tables."""
    return [score for by_method in scores.values() for score in by_method[name]]


def summary(name: str, scores: list[Score]) -> str:
    """One method's line over all tables."""
    cells = (
        middle(scores, lambda score: score.probes),
        shown(ninetieth(score.probes for score in scores)),
        middle(scores, lambda score: score.gpu_seconds).partition(".")[0],
        f"{statistics.mean(score.died for score in scores):.2f}",
        f"{found_share(scores):.0%}",
    )
    return f"| {name} | {' | '.join(cells)} |"


def verdict(scores: Scores) -> list[str]:
    """Which targets are met, and where another method needs no more probes."""
    ours = all_of(scores, OURS)
    values = [(target, target.of(ours)) for target in TARGETS]
    said = [
        f"{target.name[0].upper()}{target.name[1:]}: {'never' if value == NEVER else format(value, target.form)}, "
        f"at most {target.most:{target.form}} was asked for: {'met' if value <= target.most else 'missed'}."
        for target, value in values
    ]
    for name, by_method in scores.items():
        medians = {method: statistics.median(score.probes for score in each) for method, each in by_method.items()}
        ahead = [f"{method} ({value:g})" for method, value in medians.items() if value < medians[OURS]]
        said += [f"On {name} alone, fewer probes than {OURS}'s {shown(medians[OURS])}: {', '.join(ahead)}."] * bool(
            ahead
        )
    return said


def print_comparison(jobs: Sequence[Job], seeds: int, methods: dict[str, Method]) -> None:
    """The methods over all tables and on each; what MemTune spends when its own rules end it."""
    scores = compared(jobs, methods, seeds)
    print("\n".join(f"- {sentence}" for sentence in verdict(scores)))
    print("\n| method | probes, median | 90th percentile | GPU-seconds, median | out of memory, mean | found |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in methods:
        print(summary(name, all_of(scores, name)))
    print_blind(jobs, seeds)
    print("\nMedian of the probes on each table and, in brackets, mean of those that ran out of memory:\n")
    print(f"| table | {' | '.join(methods)} |\n|---|{'--:|' * len(methods)}")
    for name, by_method in scores.items():
        print(line(name, by_method))


def line(name: str, scores: dict[str, list[Score]]) -> str:
    """One table's line: probes and, in brackets, out-of-memory errors."""
    cells = [
        f"{middle(each, lambda score: score.probes)} ({statistics.mean(score.died for score in each):.1f})"
        for each in scores.values()
    ]
    return f"| {name} | {' | '.join(cells)} |"


def print_blind(jobs: Sequence[Job], seeds: int) -> None:
    """The operator's real spending, since it cannot know when it found a good plan, and its final result."""
    hunts = [left_alone(job, seed) for job in jobs for seed in range(seeds)]
    shares = sorted(hunt.share for hunt in hunts)
    probes = [len(hunt.plans) for hunt in hunts]
    died = [hunt.died for hunt in hunts]
    print(
        f"\nLeft alone until its own rules end it, {OURS} makes {statistics.median(probes):g} probes in the median, "
        f"{max(probes)} at most,\nwith {statistics.mean(died):.2f} out of memory in the mean, {max(died)} at most, and "
        f"ends with {statistics.median(shares):.1%} of the best throughput\nin the median, "
        f"{shares[len(shares) // 10]:.1%} at the 10th percentile, {shares[0]:.1%} at worst."
    )


def print_samplers(jobs: Sequence[Job], seeds: int) -> None:
    """The cost and result of a job under each choice of `tuning.sampler`."""
    print("\n| sampler | probes | GPU-seconds | out of memory, mean | share of the best throughput | 10th percentile |")
    print("|---|--:|--:|--:|--:|--:|")
    for sampler in get_args(Sampler):
        hunts = [left_alone(job, seed, sampler) for job in jobs for seed in range(seeds)]
        shares = sorted(hunt.share for hunt in hunts)
        cells = (
            f"{statistics.median(len(hunt.plans) for hunt in hunts):g}",
            f"{statistics.median(hunt.gpu_seconds for hunt in hunts):,.0f}",
            f"{statistics.mean(hunt.died for hunt in hunts):.2f}",
            f"{statistics.median(shares):.1%}",
            f"{shares[len(shares) // 10]:.1%}",
        )
        print(f"| {sampler} | {' | '.join(cells)} |")


def main() -> None:
    """Print the parts: published measurements, emulated memory, and modelled tables with larger spaces."""
    jobs, drawn = published(), modelled(1.0)
    print(f"# How many probes find a good plan\n\nMade by `{COMMAND}`.\n")
    print(f"## Published measurements: {len(jobs)} jobs, {SEEDS} seeds\n\n{PUBLISHED_NOTES}\n")
    print_comparison(jobs, SEEDS, METHODS)
    print(f"\n### The choices of tuning.sampler, {SEEDS} seeds\n\nLeft alone until the operator's rules end them.")
    print_samplers(jobs, SEEDS)
    print(f"\n## Emulated memory: {len(GRIDS)} jobs, {SEEDS} seeds\n\n{EMULATED_NOTES}\n")
    print_comparison(emulated(), SEEDS, METHODS)
    print(f"\n## Modelled tables: {len(drawn)} jobs, {SEEDS} seeds\n\n{MODELLED_NOTES}\n")
    print_comparison(drawn, SEEDS, METHODS)
    print("\n### Hidden factors that reach twice as far\n")
    print_comparison(modelled(FAR), SEEDS, {name: METHODS[name] for name in (OURS, "random", "TPE")})
    print(f"\n## How it is measured\n\n{METHOD_NOTES}")


if __name__ == "__main__":
    main()
