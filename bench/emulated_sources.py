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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memtune.units import GIB
from memtune_runner.emulated.build import cache_directory

_BENCH = Path(__file__).parent
_PEAKS = _BENCH / "data" / "measured_memory.csv"
_LARGE = 0.03
_LIMIT_SECONDS = 600


class Source(NamedTuple):
    """A project that published peaks. ``packages`` are all that its environment has, installed without dependencies."""

    script: str
    packages: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    variables: Mapping[str, str]
    # Added to the arguments of rows whose peak depends on what the source does not say: the other end of what may be.
    other_end: Callable[[tuple[str, ...]], tuple[str, ...]]


_ALL_LAYERS = ("--targets", "query", "key", "value", "projection", "mlp", "head")
_NF4, _DOUBLE = ("--quantized", "nf4"), ("--quantized", "nf4-dq")


def _rows(model: str, rows: int, rank: int, length: int = 512) -> tuple[str, ...]:
    return (model, "--rows", str(rows), "--rank", str(rank), "--length", str(length))


def _all_as_long(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """bitsandbytes 0.42 keeps the input of each product in 4 bits, and the previous micro-batch's as long as its loss
    lives; so that the peak depends on how long the micro-batches after the longest are."""
    return ("--others", arguments[arguments.index("--length") + 1]) if "--quantized" in arguments else ()


_LITGPT = Source(
    "emulated_litgpt.py",
    (
        "torch===2.6.0", "litgpt==0.5.0", "lightning==2.4.0", "lightning-utilities==0.15.3", "torchmetrics==1.9.0",
        "bitsandbytes==0.42.0", "scipy==1.15.3", "jsonargparse==4.53.0", "typeshed-client==2.14.0",
        "docstring-parser==0.18.0",
        "importlib-resources==7.1.0", "huggingface-hub==0.36.2", "tokenizers==0.21.0", "safetensors==0.8.0",
        "typing-extensions==4.16.0", "sympy==1.13.1", "mpmath==1.3.0", "networkx==3.6.1", "jinja2==3.1.6",
        "markupsafe==3.0.4", "fsspec==2026.9.0", "filelock==4.2.12", "numpy==2.4.6", "packaging==26.3", "pyyaml==6.0.3",
        "requests==2.34.2", "urllib3==2.8.0", "certifi==2026.10.18", "charset-normalizer==3.5.2", "idna==3.20",
        "tqdm==4.70.1", "setuptools==65.5.0",
    ),
    {
        "litgpt-01": _rows("falcon-7b", 1, 32),
        "litgpt-02": (*_rows("falcon-7b", 1, 32), *_NF4),
        "litgpt-03": (*_rows("Gemma-2b", 2, 8), *_ALL_LAYERS),
        "litgpt-04": (*_rows("Gemma-2b", 2, 16), *_ALL_LAYERS, *_NF4),
        "litgpt-05": (*_rows("Gemma-7b", 1, 16), *_ALL_LAYERS, *_NF4),
        "litgpt-06": (*_rows("Gemma-2-2b", 2, 8), *_ALL_LAYERS),
        "litgpt-09": _rows("Llama-2-7b-hf", 2, 32),
        "litgpt-11": _rows("Llama-3.1-8B", 1, 32),
        "litgpt-12": (*_rows("Llama-3.1-8B", 2, 32), *_NF4),
        "litgpt-13": _rows("Llama-3.2-1B", 1, 32),
        "litgpt-14": (*_rows("Llama-3.2-1B", 2, 32), *_NF4, "--stable-embedding"),
        "litgpt-15": _rows("Llama-3.2-3B", 1, 32),
        "litgpt-16": (*_rows("Llama-3.2-3B", 2, 32), *_NF4, "--stable-embedding"),
        "litgpt-17": _rows("Mistral-7B-v0.1", 2, 32),
        "litgpt-18": (*_rows("Mistral-7B-v0.1", 2, 32), *_NF4),
        "litgpt-19": (*_rows("phi-2", 4, 8), *_ALL_LAYERS),
        "litgpt-21": (*_rows("Phi-3-mini-4k-instruct", 4, 8), *_ALL_LAYERS),
        "litgpt-23": _rows("stablelm-base-alpha-3b", 1, 32),
        "litgpt-24": (*_rows("stablelm-base-alpha-3b", 1, 32), *_NF4),
        "litgpt-25": (*_rows("tiny-llama-1.1b", 8, 32), *_ALL_LAYERS),
        "litgpt-26": (*_rows("tiny-llama-1.1b", 8, 32), *_ALL_LAYERS, *_NF4),
        "litgptrt-01": _rows("phi-1_5", 1, 8, 1044),
        "litgptrt-02": (*_rows("phi-1_5", 1, 8, 1044), *_NF4),
        "litgptrt-03": (*_rows("phi-1_5", 1, 8, 1044), *_DOUBLE),
        "litgptrt-04": _rows("phi-1_5", 2, 8, 1044),
        "litgptrt-05": _rows("phi-1_5", 4, 8, 1044),
        "litgptrt-06": _rows("stablelm-base-alpha-3b", 1, 8, 1034),
        "litgptrt-07": (*_rows("stablelm-base-alpha-3b", 1, 8, 1034), *_NF4),
        "litgptrt-09": _rows("stablelm-base-alpha-3b", 2, 8, 1034),
        "litgptrt-10": _rows("stablelm-base-alpha-3b", 4, 8, 1034),
        "litgptrt-12": (*_rows("Llama-2-7b-hf", 1, 8, 1304), *_NF4),
        "litgptrt-13": (*_rows("Llama-2-7b-hf", 1, 8, 1304), *_DOUBLE),
        "litgptrt-14": _rows("Llama-2-7b-hf", 2, 8, 1304),
        "litgptrt-17": (*_rows("Llama-2-13b-hf", 1, 8, 1304), *_DOUBLE),
    },
    # The newest CUDA that this release of bitsandbytes was built for; its libraries run on any later one.
    {"BNB_CUDA_VERSION": "123"},
    _all_as_long,
)  # fmt: skip
SOURCES = {"litgpt": _LITGPT}


def environment(name: str, source: Source, directory: Path) -> Path:
    """The Python that has the packages of a source."""
    key = hashlib.sha256("\n".join(source.packages).encode()).hexdigest()[:12]
    made = directory / f"{name}-{key}"
    python = made / "bin" / "python"
    if not (made / "complete").exists():
        print(f"making {made}", file=sys.stderr)
        venv.create(made, clear=True, with_pip=True)
        # NVIDIA's packages are what torch requires, and what the emulated GPU takes the place of.
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        subprocess.run([*install, *source.packages], check=True)
        (made / "complete").touch()
    return python


def emulated(python: Path, source: Source, arguments: tuple[str, ...]) -> dict[str, Any]:
    """The result of one run, on the GPU that has most memory: none of these runs was near the end of its own."""
    command = [sys.executable, "-m", "memtune_cli.main", "emulate", "--gpu", "h200-141gb", "--format", "json"]
    done = subprocess.run(
        [*command, "--time-limit", str(_LIMIT_SECONDS), "--", str(python), str(_BENCH / source.script), *arguments],
        check=False, capture_output=True, text=True, env={**os.environ, **source.variables},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{source.script} {' '.join(arguments)}: {done.stderr[-3000:]}")
    return dict(json.loads(done.stdout))


def rows(source: Source, python: Path, published: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[float, ...]]:
    """Print the rows of a source; give the error of each, or the two between which it is."""
    for name, arguments in source.rows.items():
        given = published[name]
        measured = float(given["peak_bytes"])
        others = source.other_end(arguments)
        results = [emulated(python, source, each) for each in ((arguments, (*arguments, *others))[: 1 + bool(others)])]
        found = [each["measured"]["peakBytes"][given["metric"]] for each in results]
        off = tuple(size / measured - 1 for size in found)
        stubs = {stub["name"] for each in results for stub in each["measured"]["stubs"]}
        print(
            f"| {name} | {' '.join(arguments)} | {given['metric']} | {measured / GIB:.2f} "
            f"| {' to '.join(f'{size / GIB:.2f}' for size in found)} | {' to '.join(f'{each:+.1%}' for each in off)} "
            f"| {sum(each['seconds'] for each in results):.0f} | {', '.join(sorted(stubs)) or 'none'} |",
            flush=True,
        )
        yield off


def summary(errors: Sequence[tuple[float, ...]]) -> str:
    """How far off the rows are that the source describes in full, and how many of the others lie between their ends."""
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
