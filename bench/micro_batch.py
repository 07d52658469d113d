"""Whether Optuna's samplers search better where the micro-batch is an integer of the study instead of a choice.

    OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/micro_batch.py > bench/results/micro_batch.md

On the tables of search.py, each search left alone until the operator's rules end it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from search import Job, left_alone, modelled, published
from search_tables import GOOD

from memtune.planning.parameters import Choose, StudyParameters, Value
from memtune_operator.search import optuna_search, study

COMMAND = "OMP_NUM_THREADS=1 PYTHONPATH=core:operator:bench python bench/micro_batch.py > bench/results/micro_batch.md"
SIZE = "micro_batch"
SEEDS = 5
AS_IT_IS, INTEGER, ROUNDED = "a choice", "an integer, log scale", "the same, rounded to a size that a plan has"


def _distributions(parameters: StudyParameters) -> dict[str, BaseDistribution]:
    return {
        name: IntDistribution(int(min(sizes)), int(max(sizes)), log=True)
        if name == SIZE
        else CategoricalDistribution(sizes)
        for name, sizes in parameters.choices.items()
    }


def _suggesting(rounds: bool) -> Callable[[optuna.Trial], Choose]:
    def of(trial: optuna.Trial) -> Choose:
        def choose(name: str, choices: tuple[Value, ...]) -> object:
            if name != SIZE:
                return trial.suggest_categorical(name, choices)
            sizes = [int(size) for size in choices]
            chosen = trial.suggest_int(name, min(sizes), max(sizes), log=True)
            return min(sizes, key=lambda size: abs(math.log(size / chosen))) if rounds else chosen

        return choose

    return of


@contextmanager
def searching(form: str) -> Iterator[None]:
    """The operator's study with the micro-batch in another form."""
    if form == AS_IT_IS:
        yield
        return
    with (
        patch.object(study, "distributions_of", _distributions),
        patch.object(optuna_search, "suggesting", _suggesting(form == ROUNDED)),
    ):
        yield


def line(name: str, sampler: str, form: str, jobs: list[Job]) -> str:
    """One sampler's searches with one form of the parameter."""
    with searching(form):
        hunts = [left_alone(job, seed, sampler) for job in jobs for seed in range(SEEDS)]
    cells = (
        f"{statistics.mean(len(hunt.plans) for hunt in hunts):.2f}",
        f"{statistics.mean(hunt.gpu_seconds for hunt in hunts):,.0f}",
        f"{statistics.mean(hunt.died for hunt in hunts):.2f}",
        f"{statistics.mean(hunt.share >= GOOD for hunt in hunts):.0%}",
    )
    return f"| {name} | {sampler} | {form} | {' | '.join(cells)} |"


def main() -> None:
    """Print one line for each table, sampler and form."""
    print(f"# The micro-batch as a parameter of the study\n\nMade by `{COMMAND}`.\n")
    print(f"Means over all jobs and {SEEDS} seeds. MemTune's own sampler proposes the same in any form.\n")
    print("| tables | sampler | micro-batch | probes | GPU-seconds | out of memory | ends with a good plan |")
    print("|---|---|---|--:|--:|--:|--:|")
    for name, jobs, samplers in (
        ("published", published(), ("TPE", "GP", "Random")),
        ("modelled", modelled(1.0), ("TPE", "Random")),
    ):
        for sampler in samplers:
            for form in (AS_IT_IS, INTEGER, ROUNDED):
                print(line(name, sampler, form, jobs), flush=True)


if __name__ == "__main__":
    main()
