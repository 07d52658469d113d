"""Formulas beside the emulated GPU: two hundred pairs of a model and a plan, and a table of how far they are apart.

    python bench/emulated_pairs.py > bench/results/emulated-pairs.md

Pairs that ``--file`` has are not run again, so that a call which was ended goes on where it was, and the page of
changed formulas takes seconds. Needs `make env-emulated`. QLoRA and 8-bit optimizers need .venv/eight-bit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from accuracy import quantile
from emulated_pair_list import GPU, MODELS, PAIRS, Pair, prediction

from memtune.memory.prediction import Interval
from memtune.units import GIB

_BENCH = Path(__file__).parent
_ROOT = _BENCH.parent
_PYTHON = _ROOT / ".venv-emulated" / "bin" / "python"
_SCRIPT = _BENCH / "emulated_pair_run.py"
_FILE = _BENCH / "results" / "emulated-pairs.jsonl"
_LIMIT_SECONDS = 1800
_WORST = 10
# For a first look: run every nth pair.
_SAMPLE = 5
_TWENTY = 20
_COSTS = (
    "Seconds of each plan after the imports, which a tree of processes makes once: the model is built, sharded and",
    "trained for three steps. *Of twenty plans* is twenty times the mean of a model's plans, in seconds of one CPU.",
    "The machine had other work to do, up to ten times as much as it has cores, so that wall time says little.",
)


class Result(NamedTuple):
    """The measured memory of a pair on the emulated GPU, or why it could not run."""

    pair: Pair
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    host_bytes: int = 0
    problem: str = ""


class Scored(NamedTuple):
    """A pair and its prediction."""

    result: Result
    allocated: Interval
    reserved: Interval

    @property
    def error(self) -> float:
        """Relative error of the reserved bytes; positive if too much was predicted."""
        return self.reserved.expected / self.result.reserved_bytes - 1

    @property
    def allocated_error(self) -> float:
        """Relative error of the allocated bytes."""
        return self.allocated.expected / self.result.allocated_bytes - 1


def read(file: Path) -> dict[Pair, Result]:
    """Earlier results; of a pair that ran twice, the last one."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        told = json.loads(line)
        pair = Pair(told["model"], told["plan"], told["ranks"])
        if "problem" in told:
            found[pair] = Result(pair, problem=told["problem"])
        else:
            names = ("allocatedBytes", "reservedBytes", "seconds", "cpuSeconds", "hostBytes")
            found[pair] = Result(pair, *(told.get(name, 0) for name in names))
    return found


def run(model: str, pairs: Sequence[Pair], file: Path, script: Path = _SCRIPT) -> None:
    """Emulate pairs of one model in one tree of processes."""
    emulate(model, [f"{each.plan}:{each.ranks}" for each in pairs], file, script)


def emulate(model: str, words: Sequence[str], file: Path, script: Path) -> None:
    """Run a script that adds what it measures of a model to the file, on the emulated GPU."""
    apart = _ROOT / ".venv" / "eight-bit"
    path = [str(_ROOT / each) for each in ("core", "runner", "cli", "bench")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(apart)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "memtune_cli.main", "emulate", "--gpu", GPU, "--ranks", "8", "--format", "json"]
    done = subprocess.run(
        [*command, "--time-limit", str(_LIMIT_SECONDS), "--", str(_PYTHON), str(script),
         str(file), model, *words],
        check=False, capture_output=True, text=True, env=variables,
    )  # fmt: skip
    if done.returncode:
        print(f"emulated_pairs: {model} ended with {done.returncode}: {done.stderr[-2000:]}", file=sys.stderr)


def run_missing(pairs: Iterable[Pair], file: Path, processes: int, script: Path = _SCRIPT) -> None:
    """Emulate the pairs missing in the file."""
    found = read(file)
    waiting: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair not in found or found[pair].problem:
            waiting.setdefault(pair.model, []).append(pair)
    with ThreadPoolExecutor(processes) as pool:
        for model, missing in waiting.items():
            pool.submit(run, model, missing, file, script)


def score(results: Iterable[Result]) -> list[Scored]:
    """The measured pairs with their predictions."""
    found = []
    for result in results:
        if not result.problem:
            predicted = prediction(result.pair)
            found.append(Scored(result, predicted.allocated, predicted.reserved))
    return found


def families(scored: Sequence[Scored]) -> Iterator[str]:
    """The table by family."""
    yield "| family | pairs | median | p90 | above upper | width | allocated: median | p90 |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    names = dict.fromkeys(model.family for model in MODELS.values())
    for family in [*names, "all"]:
        rows = [each for each in scored if family in ("all", MODELS[each.result.pair.model].family)]
        if rows:
            yield f"| {family} | {_scores(rows)} |"


def libraries(scored: Sequence[Scored]) -> Iterator[str]:
    """The table by sharding library, and by ranks."""
    yield "| plans | pairs | median | p90 | above upper | width | allocated: median | p90 |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    groups: dict[str, list[Scored]] = {}
    for each in scored:
        pair = each.result.pair
        parts = pair.plan.split("-")
        groups.setdefault(parts[1], []).append(each)
        groups.setdefault(f"checkpointing {parts[2]}", []).append(each)
        groups.setdefault(f"rank 0 of {pair.ranks}", []).append(each)
    for name in sorted(groups):
        yield f"| {name} | {_scores(groups[name])} |"


def _scores(rows: Sequence[Scored]) -> str:
    errors = [abs(each.error) for each in rows]
    allocated = [abs(each.allocated_error) for each in rows]
    above = sum(each.result.reserved_bytes > each.reserved.upper for each in rows)
    width = statistics.median(each.reserved.width for each in rows)
    return (
        f"{len(rows)} | {statistics.median(errors):.1%} | {quantile(errors, 0.9):.1%} "
        f"| {above} ({above / len(rows):.0%}) | {width:.2f} "
        f"| {statistics.median(allocated):.1%} | {quantile(allocated, 0.9):.1%}"
    )


def listed(scored: Iterable[Scored]) -> Iterator[str]:
    """Pair by pair."""
    yield "| model | plan | rank 0 of | allocated, GiB | predicted | off | reserved, GiB | predicted | off | above |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|---|"
    for each in scored:
        model, plan, ranks = each.result.pair
        lower, expected, upper = (size / GIB for size in each.reserved)
        is_above = each.result.reserved_bytes > each.reserved.upper
        yield (
            f"| {model} | {plan} | {ranks} | {each.result.allocated_bytes / GIB:.2f} "
            f"| {each.allocated.expected / GIB:.2f} | {each.allocated_error:+.1%} "
            f"| {each.result.reserved_bytes / GIB:.2f} | {expected:.2f} ({lower:.2f}–{upper:.2f}) | {each.error:+.1%} "
            f"| {'yes' if is_above else ''} |"
        )


def overhead(results: Iterable[Result]) -> Iterator[str]:
    """The cost of an emulated plan by model, which is built and trained for some steps in a fork."""
    yield "| model | plans | seconds: median | most | of a CPU: median | most | of twenty plans | host memory: most |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    models: dict[str, list[Result]] = {}
    for each in results:
        if each.cpu_seconds:
            models.setdefault(each.pair.model, []).append(each)
    for name, found in models.items():
        seconds, computed = [each.seconds for each in found], [each.cpu_seconds for each in found]
        yield (
            f"| {name} | {len(found)} | {statistics.median(seconds):.0f} | {max(seconds):.0f} "
            f"| {statistics.median(computed):.0f} | {max(computed):.0f} "
            f"| {_TWENTY * statistics.mean(computed):.0f} | {max(each.host_bytes for each in found) / GIB:.1f} GiB |"
        )


def page(results: Sequence[Result], missing: Sequence[Pair]) -> Iterator[str]:
    """The page."""
    scored = score(results)
    yield "# Formulas and the emulated GPU"
    yield ""
    yield "Made by `python bench/emulated_pairs.py`: peaks of torch's allocator in training, after the model was built,"
    yield "as rank 0, by formulas (of the u-net, by its trace) and on the emulated GPU with the real libraries. Errors"
    yield "without a word beside them are those of reserved bytes."
    yield ""
    yield from families(scored)
    yield ""
    yield from libraries(scored)
    yield ""
    yield f"## The worst {_WORST}"
    yield ""
    yield from listed(sorted(scored, key=lambda each: -abs(each.error))[:_WORST])
    for title, items in (
        ("Could not be run", [f"{each.pair}: {each.problem}" for each in results if each.problem]),
        ("Not run", [str(each) for each in missing]),
    ):
        if items:
            yield from ("", f"## {title}", "", *(f"- {each}" for each in items))
    yield from ("", "## What it costs", "", *_COSTS, "")
    yield from overhead(results)
    yield from ("", "## All", "")
    yield from listed(scored)


def main() -> int:
    """Run missing pairs and print the page; exit code 1 if a pair could not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="of which to run the pairs (default: all)")
    parser.add_argument("--file", type=Path, default=_FILE, help="where results are kept, to resume from")
    parser.add_argument("--sample", action="store_true", help=f"run every {_SAMPLE}th pair only")
    parser.add_argument("--processes", type=int, default=2, help="models that are emulated at the same time")
    options = parser.parse_args()
    pairs = [pair for pair in PAIRS if not options.models or pair.model in options.models]
    pairs = pairs[:: _SAMPLE if options.sample else 1]
    if not _PYTHON.exists():
        print(f"emulated_pairs: {_PYTHON} is not there; make env-emulated makes it", file=sys.stderr)
        return 2
    run_missing(pairs, options.file, options.processes)
    found = read(options.file)
    results = [found[pair] for pair in pairs if pair in found]
    print("\n".join(page(results, [pair for pair in pairs if pair not in found])))
    failed = [each for each in results if each.problem]
    for each in failed:
        print(f"emulated_pairs: {each.pair}: {each.problem}", file=sys.stderr)
    return 1 if failed or len(results) < len(pairs) else 0


if __name__ == "__main__":
    sys.exit(main())
