"""Predicted against measured on a real GPU: forty pairs of a model and a plan, each in a process of its own.

    PYTHONPATH=core:runner:bench python bench/gpu_truth.py > bench/results/gpu-truth.md

``--snapshots DIRECTORY`` keeps what torch.cuda.memory._dump_snapshot tells of each pair, and as a fixture of the
allocator model the requests alone (bench/gpu_snapshot.py). ``--results FILE`` keeps what each pair took: a call that
finds it goes on with the pairs that are missing, and prints the page without a GPU, too. ``--seconds N`` ends a call
in time. Before it measures, it traces the models on the CPU. Where neither GPU nor results are, it ends with 2 and one
sentence.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import gpu_snapshot
from gpu_measure import RAN_OUT, command, variables
from gpu_pairs import PAIRS, Pair, split
from gpu_results import Results
from gpu_score import Result
from gpu_table import report, this_machine
from gpu_trace import traced

from memtune.replay.traced import TracedModel
from memtune_runner.preflight import no_gpu

NO_GPU = 2
_LIMIT_SECONDS = 900.0
_LAST_CHARACTERS = 300


def measured(pair: Pair, snapshots: Path | None = None) -> Result:
    """Measure a pair in a process of its own."""
    snapshot = snapshots / f"{pair.model}-{pair.plan}-{pair.world}.pickle" if snapshots else None
    try:
        done = subprocess.run(
            command(pair, snapshot),
            env=variables(pair, dict(os.environ)),
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Result(pair, problem=f"it did not end within {_LIMIT_SECONDS:.0f} s")
    if done.returncode == RAN_OUT:
        return Result(pair, ran_out=True)
    if done.returncode:
        return Result(pair, problem=last_words(done.stderr))
    if snapshot:
        with snapshot.open("rb") as file:
            gpu_snapshot.write(gpu_snapshot.fixture_of(pickle.load(file)), snapshot.with_suffix(".json.gz"))
    told = (line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))  # among what libraries print
    return Result(pair, **json.loads(next(told)))


def last_words(stderr: str) -> str:
    """The last line that a process wrote, which names its error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1][-_LAST_CHARACTERS:] if lines else "it ended without a word"


def main(
    arguments: Sequence[str] | None = None,
    measure: Callable[[Pair, Path | None], Result] = measured,
    trace: Callable[[Iterable[Pair]], Mapping[str, TracedModel]] = traced,
) -> int:
    """Trace all models, measure all pairs that this GPU may hold, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=Path, help="a directory for the snapshots, which are large")
    parser.add_argument("--results", type=Path, help="a file of what was measured, to go on from")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no other pair after so long")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.seconds
    found = Results(options.results)
    missing = no_gpu()
    if not missing:
        found.begin(this_machine())
    if found.machine is None:
        print(f"gpu_truth: it measures on a CUDA GPU, and {missing}; run it where a GPU is", file=sys.stderr)
        return NO_GPU
    if options.snapshots:
        options.snapshots.mkdir(parents=True, exist_ok=True)
    may, cannot = split(PAIRS, found.machine.gpu)
    traces = trace(PAIRS)
    waiting = [] if missing else [pair for pair in may if pair not in found.of_pairs]
    for number, pair in enumerate(waiting, start=1):
        if time.monotonic() > deadline:
            break
        print(f"gpu_truth: {number} of {len(waiting)}: {pair}", file=sys.stderr, flush=True)
        found.add(measure(pair, options.snapshots))
    results = [Result(pair, problem="predicted not to fit into this GPU, even by its lower bound") for pair in cannot]
    results += [found.of_pairs.get(pair, Result(pair, problem="there was no time for it yet")) for pair in may]
    made_by = " ".join(["PYTHONPATH=core:runner:bench python bench/gpu_truth.py", *(arguments or sys.argv[1:])])
    print("\n".join(report("Predicted against measured on a GPU", made_by, found.machine, results, traces)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
