"""Measures the pairs of the GPU benchmark on an emulated GPU: what stands beside the truth of a real one later.

    PYTHONPATH=core:operator:runner:cli:bench python bench/gpu_emulated.py GPU FOLDER [--model MODEL] [--most N]

Each pair runs as it does on the GPU (bench/gpu_measure.py) and is kept in FOLDER, as bench/gpu_truth.py keeps its own,
with the GPU that is emulated and the versions of the libraries.
Weights are made on the CPU, and what a plan offloads stays there, so pairs for which the host has too little memory are
left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpu_measure import RAN_OUT, command, variables
from gpu_pairs import MODELS, PAIRS, Pair, in_turns, workload
from gpu_results import Results
from gpu_score import Result
from gpu_table import Machine
from gpu_truth import last_words, result_of

from memtune.gpus.gpu import chip_of, find
from memtune.memory.formulas.shape import shape_of
from memtune.memory.host_memory import offloaded_bytes
from memtune.plans.plan import Plan
from memtune.units import GIB, gib

_ROOT = Path(__file__).parents[1]
# A test names another one, which forks.
_PYTHON = Path(os.environ.get("EMULATED_PYTHON", _ROOT / ".venv-emulated" / "bin" / "python"))
_LIMIT_SECONDS = 900
# Without the packages of this Python, whose torch is a CPU build.
_PATH = {"PYTHONPATH": os.pathsep.join(str(_ROOT / each) for each in ("core", "operator", "runner", "cli", "bench"))}
_FP32_BYTES, _LIBRARIES_BYTES = 4, 2 * GIB
# Read beside torch: its import loads CUDA libraries, which only an emulated process has.
_VERSIONS = """
import json, platform
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from gpu_table import installed
torch = run_path(str(Path(find_spec("torch").origin).with_name("version.py")))
told = {"cuda": str(torch["cuda"]), "torch": torch["__version__"], "deepspeed": installed("deepspeed")}
print(json.dumps({**told, "python": platform.python_version()}))
"""


def machine(gpu: str) -> Machine:
    """The emulated GPU, with the versions of the Python that trains on it."""
    words, environment = [str(_PYTHON), "-c", _VERSIONS], {**os.environ, **_PATH}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{_PYTHON}: {last_words(done.stderr)}")
    versions = json.loads(done.stdout.splitlines()[-1])
    return Machine(chip_of(gpu).product, find(gpu).usable_bytes, "none, it is emulated", **versions)


def emulated(pair: Pair, gpu: str, free_bytes: int) -> Result:
    """Measure a pair in a process of its own."""
    asked = workload(pair, find(gpu))
    # One of the ranks of a node runs.
    offloaded = offloaded_bytes(asked, Plan.parse(pair.plan)) // asked.gpus_per_node
    needed = _FP32_BYTES * shape_of(MODELS[pair.model], None).total + offloaded + _LIBRARIES_BYTES
    if needed > free_bytes:
        return Result(pair, problem=f"it needs {gib(needed)} of host memory, and {gib(free_bytes)} are free")
    words = [sys.executable, "-m", "memtune_cli.main", "emulate", "--gpu", gpu, "--format", "json"]
    done = subprocess.run(
        [*words, "--time-limit", str(_LIMIT_SECONDS), "--", str(_PYTHON), *command(pair)[1:]],
        env=_variables(pair), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if _exit_code(done.stdout) == RAN_OUT:
        return Result(pair, ran_out=True)
    if done.returncode:
        return Result(pair, problem=last_words(done.stderr))
    return result_of(pair, done.stderr)


def _exit_code(output: str) -> int | None:
    with suppress(ValueError, KeyError, TypeError):  # `memtune emulate` itself failed
        return int(json.loads(output)["exitCode"])
    return None


def _variables(pair: Pair) -> dict[str, str]:
    return {**variables(pair, dict(os.environ)), **_PATH, "OMP_NUM_THREADS": "1"}


def _free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the pairs that the folder does not have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpu", help="the GPU to emulate, as h200-141gb")
    parser.add_argument("folder", type=Path, help="where measurements are kept")
    parser.add_argument("--model", action="append", help="pairs of this model alone; may be given several times")
    parser.add_argument("--most", type=int, help="measure at most so many pairs")
    options = parser.parse_args(arguments)
    kept = Results(options.folder)
    try:
        kept.begin(machine(options.gpu))
    except (OSError, ValueError) as error:
        print(f"gpu_emulated: {error}", file=sys.stderr)
        return 1
    pairs = in_turns(pair for pair in PAIRS if not options.model or pair.model in options.model)
    waiting = [pair for pair in pairs if pair not in kept.of_pairs or kept.of_pairs[pair].problem]
    for number, pair in enumerate(waiting[: options.most], start=1):
        print(f"gpu_emulated: {number} of {len(waiting)}: {pair}", file=sys.stderr, flush=True)
        result = emulated(pair, options.gpu, _free_bytes())
        kept.add(result)
        if result.problem:
            print(f"gpu_emulated: {pair}: {result.problem}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
