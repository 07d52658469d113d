"""Predicted against measured on a real GPU: forty pairs of a model and a plan, each in a process of its own.

    PYTHONPATH=core:runner:bench python bench/gpu_truth.py > bench/results/gpu-truth.md

``--folder DIRECTORY`` keeps what each pair took: a call that finds it goes on with the pairs that are missing, then
with those that failed, and prints the page without a GPU, too. ``--fixtures`` also keeps there what each pair asked the
allocator for. ``--seconds N`` ends a call in time. Before it measures, it traces the models on the CPU;
``--measure-only`` spends no time of a GPU on that, and prints no page, but how many pairs it measured: it ends with 1
if one of them failed, or if none was measured although some wait. Where neither GPU nor results are, it ends with 2 and
one sentence.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import NamedTuple

from gpu_measure import RAN_OUT, command, variables
from gpu_pairs import MODELS, PAIRS, Pair, in_turns, split
from gpu_results import Results
from gpu_score import Result
from gpu_table import report, this_machine
from gpu_trace import traced

from memtune.memory.traced_model import TracedModel
from memtune.wire.environment import EMULATED_GPU
from memtune_runner.rank.preflight import no_gpu

NO_GPU = 2
# A pair of the largest model takes a minute, mostly to fill the weights; a small one that hangs leaves time to others.
# An emulated GPU computes on the CPU what it computes at all, and other work may be going on there.
_TIMES_AS_LONG = 5.0 if EMULATED_GPU in os.environ else 1.0
LIMIT_SECONDS = {model: _TIMES_AS_LONG * {"3B": 90.0, "7B": 120.0, "13B": 180.0}.get(model, 60.0) for model in MODELS}
# With less than that left, no pair is started.
_LEAST_SECONDS = 20.0
# torch is imported in so long, also from a cold disk. A process that seems older was started by an odd clock.
_OLDEST_SECONDS = 60.0
_LAST_CHARACTERS = 300
_KILLED_SECONDS = 5.0


class Counts(NamedTuple):
    """The result of a call: pairs that it measured, with those that ran out of memory, and pairs that failed."""

    measured: int = 0
    failed: int = 0


def measured(pair: Pair, fixture: Path | None = None, limit_seconds: float | None = None) -> Result:
    """Measure a pair in its own process, and write its fixture if one is requested."""
    limit_seconds = limit_seconds or LIMIT_SECONDS[pair.model]
    environment = variables(pair, dict(os.environ))
    # In files: a process that cannot be ended would hold a pipe open.
    with TemporaryFile("w+", errors="replace") as output, TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(command(pair, fixture), env=environment, stdout=output, stderr=errors)
        try:
            code = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # what hangs in the driver does not end
                process.wait(_KILLED_SECONDS)
            return Result(pair, problem=f"it did not end within {limit_seconds:.0f} s")
        for each in (output, errors):
            each.seek(0)
        if code == RAN_OUT:
            return Result(pair, ran_out=True)
        return Result(pair, problem=last_words(errors.read())) if code else result_of(pair, output.read())


def result_of(pair: Pair, output: str) -> Result:
    """The result of a pair in a successful process's output, among that of libraries."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with suppress(ValueError, TypeError):
                return Result(pair, **json.loads(line))
    return Result(pair, problem=f"it told no measurement: {last_words(output)}")


def measure_all(
    found: Results, pairs: Sequence[Pair], deadline: float, fixtures: bool, measure: Callable[..., Result] = measured
) -> Counts:
    """Measure until the monotonic clock reaches ``deadline``; an interrupted pair stays missing."""
    counts = Counts()
    for number, pair in enumerate(pairs, start=1):
        left = deadline - time.monotonic()
        if left < _LEAST_SECONDS:
            break
        print(f"gpu_truth: {number} of {len(pairs)}: {pair}", file=sys.stderr, flush=True)
        limit = min(LIMIT_SECONDS[pair.model], left)
        with TemporaryDirectory() as directory:
            kept = Path(directory, f"{pair.model}-{pair.plan}-{pair.world}.json.gz") if fixtures else None
            result = measure(pair, kept, limit)
            if result.problem and time.monotonic() >= deadline and limit < LIMIT_SECONDS[pair.model]:
                break
            # Before the pair, which is not measured again once it is kept.
            if kept is not None and kept.exists() and not found.add_fixture(kept):
                print(f"gpu_truth: {pair}: {found.folder} has no room for its fixture", file=sys.stderr, flush=True)
            found.add(result)
        if result.problem:
            print(f"gpu_truth: {pair}: {result.problem}", file=sys.stderr, flush=True)
            counts = counts._replace(failed=counts.failed + 1)
        else:
            counts = counts._replace(measured=counts.measured + 1)
    return counts


def last_words(stderr: str) -> str:
    """The last line that a process wrote, which names its error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1][-_LAST_CHARACTERS:] if lines else "it ended without a word"


def main(
    arguments: Sequence[str] | None = None,
    measure: Callable[..., Result] = measured,
    trace: Callable[[Iterable[Pair]], Mapping[str, TracedModel]] = traced,
) -> int:
    """Trace all models, measure all pairs that may fit this GPU, and print the page."""
    options = _options(arguments)
    deadline = time.monotonic() + options.seconds - (_age_seconds() if math.isfinite(options.seconds) else 0.0)
    found = Results(options.folder)
    missing = no_gpu()
    if not missing:
        found.begin(this_machine())
    if not found.machines:
        print(f"gpu_truth: it measures on a CUDA GPU, and {missing}; run it where a GPU is", file=sys.stderr)
        return NO_GPU
    pairs = [pair for pair in PAIRS if not options.model or pair.model in options.model]
    traces = {} if options.measure_only else trace(pairs)
    waiting, counts = [], Counts()
    if not missing:
        ordered = in_turns(split(pairs, found.machines[0].gpu)[0])
        waiting = [pair for pair in ordered if pair not in found.of_pairs]
        # A failed pair may have been fixed since, or hangs again.
        waiting += [pair for pair in ordered if pair in found.of_pairs and found.of_pairs[pair].problem]
        counts = measure_all(found, waiting[: options.most], deadline, options.fixtures, measure)
    if options.measure_only:
        print(json.dumps({**counts._asdict(), "waited": len(waiting)}))
        return int(counts.failed > 0 or (not counts.measured and bool(waiting)))
    made_by = " ".join(["PYTHONPATH=core:runner:bench python bench/gpu_truth.py", *(arguments or sys.argv[1:])])
    pages = [_page(found, product, pairs, traces, Results(options.emulated), made_by) for product in found.products]
    print("\n\n".join("\n".join(page) for page in pages))
    return 0


def _page(
    found: Results,
    product: str,
    pairs: Sequence[Pair],
    traces: Mapping[str, TracedModel],
    emulated: Results,
    made_by: str,
) -> list[str]:
    found.product = product
    may, cannot = split(pairs, found.machines[0].gpu)
    results = [Result(pair, problem="predicted not to fit into this GPU, even by its lower bound") for pair in cannot]
    results += [found.of_pairs.get(pair, Result(pair, problem="there was no time for it yet")) for pair in may]
    title = f"Predicted against measured on {product}"
    return report(title, made_by, found.machines, results, traces, emulated.of_pairs, emulated.machines)


def _age_seconds() -> float:
    """For how long this process has run, most of it to import torch: the caller's limit has counted since its start."""
    try:
        started = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # it is not Linux
        return 0.0
    return min(max(age, 0.0), _OLDEST_SECONDS)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where measurements are kept, to resume from")
    parser.add_argument("--fixtures", action="store_true", help="keep the allocator's events in --folder, too")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="let every pair end within so long of the start"
    )
    parser.add_argument("--emulated", type=Path, help="a folder of bench/gpu_emulated.py, to stand in the page, too")
    parser.add_argument("--most", type=int, help="measure at most so many pairs")
    parser.add_argument("--model", action="append", help="pairs of this model alone; may be given several times")
    parser.add_argument("--measure-only", action="store_true", help="trace nothing and print no page")
    options = parser.parse_args(arguments)
    if options.folder is None and (options.fixtures or options.measure_only):
        parser.error("--fixtures and --measure-only keep what they measure in a folder: give --folder")
    return options


if __name__ == "__main__":
    sys.exit(main())
