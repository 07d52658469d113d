"""Published peaks of GPU runs, and the same runs on the emulated GPU.

Each row is a training of someone else's, written down again in a script beside this one and run by `memtune emulate` in
.venv-emulated (`make env-emulated`). The published numbers, with their sources, are in the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from memtune.units import GIB

_BENCH = Path(__file__).parent
_PYTHON = _BENCH.parent / ".venv-emulated" / "bin" / "python"
_LLAMA = "Llama 3.1 8B, FSDP2, 2 x 8,192 tokens"
_COMPILED = f"{_LLAMA}, compiled"
_TITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"


class Row(NamedTuple):
    """One published run. ``reserved_gib`` is the caching allocator's peak of reserved memory."""

    name: str
    source: str
    reserved_gib: float
    gpu: str
    ranks: int
    script: str
    arguments: tuple[str, ...]


ROWS = (
    Row(_LLAMA, _TITAN, 82.4, "h100-96gb", 8, "emulated_llama.py", ("2", "8192")),
    Row(_LLAMA, _TITAN, 67.0, "h100-96gb", 128, "emulated_llama.py", ("2", "8192")),
    Row(_COMPILED, _TITAN, 77.0, "h100-96gb", 8, "emulated_llama.py", ("2", "8192", "compiled")),
    Row(_COMPILED, _TITAN, 62.0, "h100-96gb", 128, "emulated_llama.py", ("2", "8192", "compiled")),
)
# The source does not state the allocator's settings, so both are shown.
EXPANDABLE = ("False", "True")


def emulated(row: Row, python: Path, expandable: str) -> dict[str, Any]:
    """The result of a row's run."""
    words = ["--gpu", row.gpu, "--ranks", str(row.ranks), "--format", "json"]
    command = [sys.executable, "-m", "memtune_cli.main", "emulate", *words, "--"]
    variables = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}
    done = subprocess.run(
        [*command, str(python), str(_BENCH / row.script), *row.arguments],
        check=True, stdout=subprocess.PIPE, text=True, env=variables,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--python", type=Path, action="append", help="a Python with a CUDA build of torch; may be given several times"
    )
    pythons = parser.parse_args().python or [_PYTHON]
    if missing := [str(each) for each in pythons if not each.exists()]:
        print(f"{', '.join(missing)} is not there; make env-emulated makes {_PYTHON}", file=sys.stderr)
        return 2
    print("| run | GPUs | torch | expandable segments | published, reserved | emulated | off | seconds | host memory |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row, python, expandable in product(ROWS, pythons, EXPANDABLE):
        result = emulated(row, python, expandable)
        measured, torch = result["measured"], result["torch"]
        reserved = measured["peakBytes"]["reserved"] / GIB
        print(
            f"| {row.name} | {row.ranks} x {row.gpu} | {torch['version']}, cuDNN {torch['cudnn']} | {expandable} "
            f"| {row.reserved_gib:.1f} GiB | {reserved:.2f} GiB | {reserved / row.reserved_gib - 1:+.1%} "
            f"| {result['seconds']:.0f} | {measured['hostPeakBytes'] / GIB:.2f} GiB |",
            flush=True,
        )
    print()
    for source in sorted({row.source for row in ROWS}):
        print(f"Published: {source}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
