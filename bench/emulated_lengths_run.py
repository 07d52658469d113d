"""Trains a model under several plans on the emulated GPU, on batches of varying lengths, each in a fork.

    python bench/emulated_lengths_run.py FILE MODEL PLAN:RANKS:LENGTHS:SEED:BATCHES[:needed] [...]

Run by `memtune emulate`. Each case adds a line of JSON to FILE. With ``needed``, the emulated GPU is then shrunk until
the same batches run out of memory.
"""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path

from emulated_needed_run import least_limit
from emulated_pair_list import MODELS
from emulated_pair_run import import_all, in_a_fork, tell

from memtune.plans.plan import Plan

# For "log-normal": the median is this share of the cap, and the logarithm has this standard deviation.
_MEDIAN, _SPREAD = 1 / 8, 1.0
# The shortest sample of the datasets of instructions that publish one, such as ms-swift's.
_SHORTEST = 91


def drawn(kind: str, cap: int, rows: int, batches: int, seed: int) -> list[int]:
    """The lengths of micro-batches that are padded to their longest sample, of which one is as long as the cap.

    ``uniform`` goes from the shortest sample to the cap; ``lognormal`` is truncated at the cap.
    """
    source = random.Random(seed)

    def sample() -> int:
        if kind == "fixed":
            return cap
        if kind == "uniform":
            return source.randint(_SHORTEST, cap)
        return min(max(int(cap * _MEDIAN * source.lognormvariate(0.0, _SPREAD)), _SHORTEST // 4), cap)

    found = [max(sample() for _ in range(rows)) for _ in range(batches)]
    found[source.randrange(batches // 2, batches)] = cap
    return found


def main(arguments: list[str]) -> int:
    """Run the cases one after the other."""
    warnings.simplefilter("ignore")
    file, model, *cases = arguments
    import_all(model)
    for case in cases:
        plan, ranks, kind, seed, batches, *more = case.split(":")
        lengths = drawn(kind, MODELS[model].length, Plan.parse(plan).micro_batch, int(batches), int(seed))
        told = {"model": model, "plan": plan, "ranks": int(ranks), "lengths": kind, "seed": int(seed)}
        if more:
            found = least_limit(model, plan, int(ranks), lengths)
        else:
            found = in_a_fork(model, plan, int(ranks), lengths=lengths)
        tell(Path(file), {**told, "batches": int(batches), **found})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
