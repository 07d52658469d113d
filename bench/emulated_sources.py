"""Published peaks of other packages' GPU runs, and the same runs of these packages on the emulated GPU.

Each source has a script beside this one and an environment of its own with the package's release, which is made outside
of the repository when it is not there (some 2 GB for each). The published peaks are those of data/measured_memory.csv.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulated_source_rows import SOURCES, Source

from memtune.units import GIB
from memtune_runner.emulated.build import cache_directory

_BENCH = Path(__file__).parent
_PEAKS = _BENCH / "data" / "measured_memory.csv"
_LARGE = 0.03
_LIMIT_SECONDS = 600


def environment(name: str, source: Source, directory: Path) -> Path:
    """The Python with the packages of a source."""
    key = hashlib.sha256("\n".join(source.packages).encode()).hexdigest()[:12]
    made = directory / f"{name}-{key}"
    python = made / "bin" / "python"
    if not (made / "complete").exists():
        print(f"making {made}", file=sys.stderr)
        venv.create(made, clear=True, with_pip=True)
        # torch requires NVIDIA's packages, which the emulated GPU replaces.
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        subprocess.run([*install, *source.packages], check=True)
        (made / "complete").touch()
    return python


def emulated(python: Path, source: Source, arguments: tuple[str, ...], ranks: int = 1) -> dict[str, Any]:
    """The result of one run."""
    command = [sys.executable, "-m", "memtune_cli.main", "emulate", "--gpu", source.gpu, "--format", "json"]
    command += ["--ranks", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [*command, "--time-limit", str(_LIMIT_SECONDS), "--", str(python), str(_BENCH / source.script), *arguments],
        check=False, capture_output=True, text=True, env={**os.environ, **source.variables},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{source.script} {' '.join(arguments)}: {done.stderr[-3000:]}")
    return dict(json.loads(done.stdout))


def peak(source: Source, peaks: Mapping[str, int], metric: str) -> int:
    """A run's peak in the source's metric: one of the allocator's, or the driver's including the context."""
    return peaks["driver"] + source.context_bytes if metric == "device" else peaks[metric]


def _words(arguments: Sequence[str], model: str) -> str:
    """A run's arguments, with the model's name if its whole configuration is one of them."""
    return " ".join(model if word.startswith("{") else word for word in arguments)


def rows(source: Source, python: Path, published: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[float, ...]]:
    """Print the rows of a source; yield the error of each, or its two bounds."""
    for name, arguments in source.rows.items():
        given = published[name]
        measured = float(given["peak_bytes"])
        others = source.other_end(arguments)
        runs, ranks = (arguments, (*arguments, *others))[: 1 + bool(others)], source.ranks.get(name, 1)
        try:
            results = [emulated(python, source, each, ranks) for each in runs]
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        found = [peak(source, each["measured"]["peakBytes"], given["metric"]) for each in results]
        off = tuple(size / measured - 1 for size in found)
        stubs = {stub["name"] for each in results for stub in each["measured"]["stubs"]}
        print(
            f"| {name} | {_words(arguments, given['model'])} | {given['metric']} | {measured / GIB:.2f} "
            f"| {' to '.join(f'{size / GIB:.2f}' for size in found)} | {' to '.join(f'{each:+.1%}' for each in off)} "
            f"| {sum(each['seconds'] for each in results):.0f} | {', '.join(sorted(stubs)) or 'none'} |",
            flush=True,
        )
        yield off


def summary(errors: Sequence[tuple[float, ...]]) -> str:
    """The errors of fully described rows, and how many of the others lie between their bounds."""
    sizes = sorted(abs(each[0]) for each in errors if len(each) == 1)
    between = [each for each in errors if len(each) > 1]
    tenth = statistics.quantiles(sizes, n=10)[-1] if len(sizes) > 1 else sizes[0]
    inside = sum(min(each) <= 0 <= max(each) for each in between)
    return (
        f"{len(sizes)} rows with one result: {statistics.median(sizes):.1%} off in the median, {tenth:.1%} at the 90th "
        f"percentile, {sum(size > _LARGE for size in sizes)} above {_LARGE:.0%}. {len(between)} rows with two: "
        f"{inside} of the published peaks lie between them."
    )


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", default=list(SOURCES), help="of which to run all rows (default: all)")
    parser.add_argument(
        "--environments", type=Path, default=cache_directory().parent / "bench", help="where environments are made"
    )
    options = parser.parse_args()
    with _PEAKS.open(encoding="utf-8", newline="") as file:
        published = {row["id"]: row for row in csv.DictReader(file)}
    errors: list[tuple[float, ...]] = []
    for name in options.sources:
        python = environment(name, SOURCES[name], options.environments)
        print("| row | run | metric | published, GiB | emulated, GiB | off | seconds | stubs called |")
        print("|---|---|---|---|---|---|---|---|")
        errors += rows(SOURCES[name], python, published)
    print(f"\n{summary(errors)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
