"""How long plans of one model take on the emulated GPU, forked from one Python: a tiny Llama under the Trainer.

python bench/emulated_forks.py > bench/results/emulated-forks.md
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

_COMMAND = "python bench/emulated_forks.py > bench/results/emulated-forks.md"
_PLANS = (1, 20)
_ROOT = Path(__file__).parents[1]
_ENVIRONMENT = _ROOT / ".venv-emulated"
_HEAD = f"""
# Plans of one model on the emulated GPU

Made by `{_COMMAND}`, on two cores of a machine without a GPU, with
Python {sys.version.split()[0]}. `memtune emulate hf-trainer.yaml --top N` runs three steps of the tiny Llama of
`examples/hf-trainer.yaml` under each of N plans for 2 H100, which it forks from one Python. CPU seconds are those of
all its processes. The load is that of the minute before: above 0, other programs had a part of the two cores.

| plans | torch | seconds | CPU seconds | load before |
|---|---|---|---|---|
""".strip()


def row(job: Path, plans: int) -> str:
    """Return what one call of `memtune emulate` takes."""
    paths = os.pathsep.join(str(_ROOT / part) for part in ("core", "operator", "runner", "cli"))
    activated = {"VIRTUAL_ENV": str(_ENVIRONMENT), "PATH": f"{_ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    load, before, started = os.getloadavg()[0], _cpu_seconds(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "memtune_cli.main", "emulate", str(job), "--top", str(plans), "--format", "json"],
        check=True, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env={**os.environ, **activated, "PYTHONPATH": paths},
    )  # fmt: skip
    seconds = time.monotonic() - started
    runs = json.loads(done.stdout)["plans"]
    return f"| {len(runs)} | {runs[0]['torch']} | {seconds:.0f} | {_cpu_seconds() - before:.0f} | {load:.1f} |"


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Print the page."""
    job = yaml.safe_load((_ROOT / "examples" / "hf-trainer.yaml").read_text())
    job["spec"]["resources"] = {"gpusPerNode": 2, "gpuProduct": "h100-80gb"}
    del job["spec"]["tuning"]  # all plans
    print(_HEAD)
    with TemporaryDirectory() as directory:
        file = Path(directory, "hf-trainer.yaml")
        file.write_text(yaml.safe_dump(job))
        for plans in _PLANS:
            print(row(file, plans), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
