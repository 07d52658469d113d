"""How many probes find a good plan: the operator's search against random, grid, TPE, GPSampler and DeepSpeed's order.

    OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/search.py > bench/results/search.md

On modelled tables (search_tables.py), until a probe has measured a plan that fits and reaches 97% of the throughput of
the best plan that does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple, get_args

from search_methods import MOST_PROBES, Hunt, Method, deepspeed_order, grid_order, memtune, random_order
from search_samplers import gp, tpe
from search_tables import CASES, GOOD, HEADROOM, Case, table_of

from memtune.spec.tuning import Sampler, Tuning

COMMAND = "OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/search.py > bench/results/search.md"
SEEDS = 20
# The tables whose factors reach twice as far take less seeds and not the slowest method: they check the conclusion.
FAR_SEEDS = 5
FAR = 2.0
OURS = "MemTune"
METHODS: dict[str, Method] = {
    OURS: memtune,
    "random": random_order,
    "grid": grid_order,
    "TPE": tpe,
    "GPSampler": gp,
    "DeepSpeed's order": deepspeed_order,
}
TARGET_PROBES, TARGET_DIED = 6, 1
NEVER = float("inf")

METHOD_NOTES = f"""
A search ends when a probe has measured a plan that keeps {HEADROOM:.0%} of the GPU free and truly reaches
{GOOD:.0%} of the throughput of the best such plan. One that gave up before took for ever, and the medians count it so;
"found" is the share of the others. {OURS} ends by its own rules and may make {Tuning().max_probes} probes, its default;
the others may make {MOST_PROBES}. A probe costs its start and {Tuning().probe_steps} shortened steps on every GPU of
the job; one that runs out of memory, its start.

The tables are the prediction times hidden factors: of memory for the whole job, for each component and each plan,
of speed for the whole job, each sharding, each checkpointing and each plan, with noise on every probe. A plan whose
true memory is above the GPU's is out of memory, wherever the prediction saw that edge. They are no measurements: where
the predictor orders plans worse than such factors do, {OURS} needs more probes than here.

Where {OURS} did not find a good plan, it mostly ended by its rule of three probes without gain: they went to plans that
differ in stage or micro-batch alone, while another sharding or checkpointing was faster than predicted. It learns one
factor of speed for all plans, not one for each knob.

- All methods choose among the plans that the prediction does not rule out, which is a help to the others.
- TPE and GPSampler are Optuna's, with one startup trial; TPE is multivariate. They see sharding, checkpointing and the
  micro-batch's place among the divisors. What they name twice, or what is ruled out, costs nothing.
- Grid is in the order of nested loops, from no sharding, no checkpointing and micro-batch 1.
- DeepSpeed's order is that of deepspeed/autotuning/README.md (github.com/deepspeedai/DeepSpeed), "Autotuning Workflow
  and Scope": stages 0, 1, 2, 3 as far as they may fit, micro-batches in each (here upwards, until memory runs out),
  ended after a stage that is no better than the one before. It chooses no checkpointing and knows no FSDP; here it is
  given the checkpointing of the best plan, and its profiling run is not counted."""


class Score(NamedTuple):
    """What one search took. What did not find a good plan took for ever, however early it gave up."""

    probes: float
    gpu_seconds: float
    died: int


Scores = dict[str, dict[str, list[Score]]]


def scored(hunt: Hunt) -> Score:
    """The figures of a search that is over."""
    if not hunt.found:
        return Score(NEVER, NEVER, hunt.died)
    return Score(len(hunt.plans), hunt.gpu_seconds, hunt.died)


def hunted(case: Case, method: Method, seed: int, reach: float = 1.0, blind: bool = False, sampler: str = OURS) -> Hunt:
    """One search. Every method meets the same truth at the same seed."""
    table = table_of(case.workload, Random(f"{case.size}/{seed}"), reach)
    hunt = Hunt(table, Random(f"{case.size}/{seed}/probes"), blind, sampler=sampler, seed=f"{case.size}/{seed}")
    method(hunt)
    return hunt


def middle(scores: Iterable[Score], of: Callable[[Score], float]) -> str:
    """The median over searches as a table shows it."""
    value = statistics.median(of(score) for score in scores)
    return "never" if value == NEVER else f"{value:,.1f}".removesuffix(".0")


def all_of(scores: Scores, name: str) -> list[Score]:
    """The searches of one method on all tables."""
    return [score for by_method in scores.values() for score in by_method[name]]


def summary(name: str, scores: list[Score]) -> str:
    """One method's line over all tables."""
    found = sum(score.probes < NEVER for score in scores) / len(scores)
    cells = (
        middle(scores, lambda score: score.probes),
        middle(scores, lambda score: score.gpu_seconds).partition(".")[0],
        middle(scores, lambda score: score.died),
        f"{statistics.mean(score.died for score in scores):.2f}",
        f"{found:.0%}",
    )
    return f"| {name} | {' | '.join(cells)} |"


def verdict(scores: Scores) -> list[str]:
    """Whether the target is met, and where another method is ahead, in words."""
    probes = {name: statistics.median(score.probes for score in all_of(scores, name)) for name in METHODS}
    died = statistics.median(score.died for score in all_of(scores, OURS))
    few = probes[OURS] <= TARGET_PROBES and died <= TARGET_DIED
    behind = [name for name in METHODS if name != OURS and probes[name] <= probes[OURS]]
    said = [
        f"Target of at most {TARGET_PROBES} probes and {TARGET_DIED} out-of-memory in the median: "
        f"{'met' if few else 'missed'}.",
        f"Ahead of every other method in the median: {'no, not of ' + ', '.join(behind) if behind else 'yes'}.",
    ]
    for size, by_method in scores.items():
        medians = {name: statistics.median(score.probes for score in each) for name, each in by_method.items()}
        ahead = [f"{name} ({value:g})" for name, value in medians.items() if name != OURS and value <= medians[OURS]]
        said += [
            f"On the table {size} alone, no more probes than {OURS}'s {medians[OURS]:g}: {', '.join(ahead)}."
        ] * bool(ahead)
    return said


def line(case: Case, scores: dict[str, list[Score]]) -> str:
    """One table's line: probes and, in brackets, out-of-memory."""
    cells = [
        f"{middle(each, lambda score: score.probes)} ({middle(each, lambda score: score.died)})"
        for each in scores.values()
    ]
    workload = case.workload
    return f"| {case.size} on {workload.world} x {workload.gpu.name} | {' | '.join(cells)} |"


def compared(methods: dict[str, Method], seeds: int, reach: float) -> Scores:
    """The methods on every table."""
    return {
        case.size: {
            name: [scored(hunted(case, method, seed, reach)) for seed in range(seeds)]
            for name, method in methods.items()
        }
        for case in CASES
    }


def print_summary(title: str, scores: Scores) -> None:
    """The medians over all tables."""
    print(f"\n## {title}\n")
    print("| method | probes | GPU seconds | out of memory | out of memory, mean | found |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in scores[CASES[0].size]:
        print(summary(name, all_of(scores, name)))


def print_blind(reach: float, seeds: int) -> None:
    """What the operator really spends, for it cannot know when it has found a good plan, and what it ends with."""
    hunts = [hunted(case, memtune, seed, reach, blind=True) for case in CASES for seed in range(seeds)]
    shares = sorted(hunt.share for hunt in hunts)
    probes = [len(hunt.plans) for hunt in hunts]
    died = [hunt.died for hunt in hunts]
    print(
        f"\nLeft alone until its own rules end it, {OURS} makes {statistics.median(probes):g} probes in the median, "
        f"{max(probes)} at most,\nwith {statistics.mean(died):.2f} out of memory in the mean, {max(died)} at most, and "
        f"ends with {statistics.median(shares):.1%} of the best throughput\nin the median, "
        f"{shares[len(shares) // 10]:.1%} at the 10th percentile, {shares[0]:.1%} at worst."
    )


def print_samplers() -> None:
    """What a job spends and ends with under each choice of `tuning.sampler`."""
    print(f"\n## The choices of tuning.sampler, {FAR_SEEDS} seeds\n\nLeft alone until the operator's rules end them.\n")
    print("| sampler | probes | GPU seconds | out of memory, mean | share of the best throughput | 10th percentile |")
    print("|---|--:|--:|--:|--:|--:|")
    for sampler in get_args(Sampler):
        hunts = [hunted(case, memtune, seed, 1.0, True, sampler) for case in CASES for seed in range(FAR_SEEDS)]
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
    """Print the medians of all tables, of each, and of tables that the prediction misses by twice as much."""
    scores = compared(METHODS, SEEDS, 1.0)
    print(f"# How many probes find a good plan\n\nMade by `{COMMAND}`")
    print(f"on {len(CASES)} modelled tables with {SEEDS} seeds each; medians.\n")
    print("\n".join(f"- {sentence}" for sentence in verdict(scores)))
    print_summary("All tables", scores)
    print_blind(1.0, SEEDS)
    print("\n## Each table\n\nProbes and, in brackets, those that ran out of memory.\n")
    print(f"| table | {' | '.join(METHODS)} |\n|---|{'--:|' * len(METHODS)}")
    for case in CASES:
        print(line(case, scores[case.size]))
    far = {name: method for name, method in METHODS.items() if method is not gp}
    print_summary(f"Hidden factors that reach twice as far, {FAR_SEEDS} seeds", compared(far, FAR_SEEDS, FAR))
    print_blind(FAR, FAR_SEEDS)
    print_samplers()
    print(f"\n## How it is measured\n{METHOD_NOTES}")


if __name__ == "__main__":
    main()
