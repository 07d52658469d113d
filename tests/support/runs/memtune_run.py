"""Runs `memtune run` from start to end, as its user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_to_the_end(job: Path, state: Path, seconds: float = 600, python: str = sys.executable) -> dict[str, Any]:
    """The final status of a job that must succeed, with the Python that also runs its ranks."""
    done = subprocess.run(
        [python, "-m", "memtune_cli.main", "run", str(job), "--state", str(state)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    logs = "".join(f"\n{log}\n{log.read_text()[-2000:]}" for log in sorted(state.glob("runs/*/log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    status: dict[str, Any] = json.loads((state / "job.json").read_text())["status"]
    return status
