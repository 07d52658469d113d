"""Example jobs with `device: emulated`, and `memtune` run as in an activated .venv-emulated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from emulated_gpu import PYTHON

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(directory: Path, name: str, resources: dict[str, Any], **spec: Any) -> Path:
    """Return a job of examples/ on an emulated H100, with blocks of its spec replaced."""
    documents = yaml.safe_load_all((_EXAMPLES / f"{name}.yaml").read_text())
    body = next(each for each in documents if each["kind"] == "MemoryTunedJob")
    body["spec"] |= {"resources": {"gpuProduct": "h100-80gb", "device": "emulated", **resources}, **spec}
    file = directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(body))
    return file


def memtune(
    *words: str, activated: bool = True, programs: Path = PYTHON.parent, limit: int = 300
) -> subprocess.CompletedProcess[str]:
    """Run the command in the root of the repository, which has the examples' scripts."""
    # Without the packages of this Python, whose torch is the CPU build.
    ours = os.pathsep.join(str(_EXAMPLES.parent / part) for part in ("core", "runner", "operator", "cli"))
    own = {"VIRTUAL_ENV": str(PYTHON.parents[1]), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [sys.executable, "-m", "memtune_cli.main", *words],
        # One width of its pages, which leave columns out: a worker of pytest-xdist has that of the user's terminal.
        env={**os.environ, "PYTHONPATH": ours, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **(own if activated else {})},
        cwd=_EXAMPLES.parent,
        check=False, capture_output=True, text=True, timeout=limit,
    )  # fmt: skip
