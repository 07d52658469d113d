"""Scripts on the emulated GPU, example jobs on it, and `memtune` as in an activated .venv-emulated."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml
from warm_environment import launching_python, warm_emulated

_EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def emulate(
    script: Path, *options: str, arguments: tuple[str, ...] = (), limit: int = 400, python: Path | None = None
) -> tuple[int, dict[str, Any]]:
    """Run `memtune emulate` on a script; return its exit code and JSON.

    Without a ``python`` of its own, it is forked from one that has imported torch and transformers.
    """
    command = [launching_python(), "-m", "memtune_cli.main", "emulate", "--format", "json", *options, "--"]
    done = subprocess.run(
        [*command, str(python or warm_emulated()), str(script), *arguments],
        check=False, capture_output=True, text=True, timeout=limit, cwd=script.parent,
    )  # fmt: skip
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, {**json.loads(done.stdout), "printed": done.stderr}


def example(directory: Path, name: str, resources: dict[str, Any], **spec: Any) -> Path:
    """Return a job of examples/ on an emulated H100, with blocks of its spec replaced."""
    documents = yaml.safe_load_all((_EXAMPLES / f"{name}.yaml").read_text())
    body = next(each for each in documents if each["kind"] == "MemoryTunedJob")
    body["spec"] |= {"resources": {"gpuProduct": "h100-80gb", "device": "emulated", **resources}, **spec}
    file = directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(body))
    return file


def memtune(
    *words: str, activated: bool = True, programs: Path | None = None, limit: int = 300
) -> subprocess.CompletedProcess[str]:
    """Run the command in the root of the repository, which has the examples' scripts.

    The activated environment's ``programs`` are those of a `python` that is forked in the same way, or others.
    """
    # Without the packages of this Python, whose torch is the CPU build.
    ours = os.pathsep.join(str(_EXAMPLES.parent / part) for part in ("core", "runner", "operator", "cli"))
    first = programs or warm_emulated().parent
    own = {"VIRTUAL_ENV": str(first.parent), "PATH": f"{first}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [launching_python(), "-m", "memtune_cli.main", *words],
        # One width of its pages, which leave columns out: a worker of pytest-xdist has that of the user's terminal.
        env={**os.environ, "PYTHONPATH": ours, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **(own if activated else {})},
        cwd=_EXAMPLES.parent,
        check=False, capture_output=True, text=True, timeout=limit,
    )  # fmt: skip
