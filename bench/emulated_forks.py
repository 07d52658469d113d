"""How long plans of one model take on the emulated GPU, forked from one Python: Llamas under the Trainer.

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
from emulated_forks_model import HF_CONFIG, LENGTH

from memtune.plans.plan import Plan
from memtune.units import GIB

_COMMAND = "python bench/emulated_forks.py > bench/results/emulated-forks.md"
_PLANS = (1, 20)
_LARGE = {
    "model": {"hfConfig": {"model_type": "llama", **HF_CONFIG}},
    "training": {"globalBatchSize": 64, "sequenceLength": LENGTH, "optimizer": "adamw", "attention": "sdpa"},
    "resources": {"gpusPerNode": 8, "gpuProduct": "h100-80gb"},
}
_ROOT = Path(__file__).parents[1]
_SCRIPT = "bench/emulated_forks_train.py"
_ENVIRONMENT = _ROOT / ".venv-emulated"
_HEAD = f"""
# Plans of one model on the emulated GPU

Made by `{_COMMAND}`, on two cores of a machine without a GPU, with
Python {sys.version.split()[0]}. `memtune emulate JOB.yaml --top N` runs three steps of a Llama and a save under each of
N plans, as rank 0, forked from one Python, two at a time. The tiny one is that of `examples/hf-trainer.yaml` on 2 H100;
that of 1.1 billion weights, of `bench/emulated_forks_train.py`, has 64 x 2,048 tokens a step on 8. CPU seconds are of
all processes. The load is that of the minute before: above 0, other programs had a part of the two cores.

| model | plans | sharding | torch | seconds | CPU seconds | host memory | load before |
|---|---|---|---|---|---|---|---|
""".strip()


def row(model: str, job: Path, plans: int) -> str:
    """Return what one call of `memtune emulate` takes."""
    paths = os.pathsep.join(str(_ROOT / part) for part in ("core", "operator", "runner", "cli"))
    activated = {"VIRTUAL_ENV": str(_ENVIRONMENT), "PATH": f"{_ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    load, before, started = os.getloadavg()[0], _cpu_seconds(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "memtune_cli.main", "emulate", str(job), "--top", str(plans), "--format", "json"],
        check=True, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env={**os.environ, **activated, "PYTHONPATH": paths},
    )  # fmt: skip
    seconds, used = time.monotonic() - started, _cpu_seconds() - before
    runs = json.loads(done.stdout)["plans"]
    sharding = ", ".join(sorted({Plan.parse(each["plan"]).sharding.value for each in runs}))
    host_gib = max(each["hostPeakBytes"] for each in runs) / GIB
    cells = (
        *(model, len(runs), sharding, runs[0]["torch"], f"{seconds:.0f}", f"{used:.0f}", f"{host_gib:.1f} GiB"),
        f"{load:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


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
        file = Path(directory, "job.yaml")
        for model in ("tiny", "1.1B"):
            if model != "tiny":
                job["spec"].update(_LARGE)
                job["spec"]["template"]["spec"]["containers"][0]["command"] = ["torchrun", _SCRIPT]
            file.write_text(yaml.safe_dump(job))
            for plans in _PLANS:
                print(row(model, file, plans), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
