"""Runs every test stage this machine can run, quickest first, and prints where the time went.

A stage that cannot run here says why in the table. The table is also written to build/test-stages.json, so that
whoever needs every stage (CI does) can tell a stage that passed from one that was skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = ROOT / "build" / "test-stages.json"
CANNOT_RUN = 3


@dataclass(frozen=True)
class Stage:
    """One directory of tests; ``guard`` is a command that ends with 3, and says why, where the stage cannot run."""

    name: str
    guard: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: ``passed``, ``failed`` or ``skipped``."""

    stage: str
    result: str
    seconds: float
    note: str = ""


STAGES = (
    Stage("unit"),
    Stage("contract"),
    Stage("cluster", guard=(sys.executable, "-m", "devcluster", "can-run")),
    Stage("gpu", guard=(sys.executable, "tests/support/cuda_gpu.py")),
)


def run(stage: Stage) -> Outcome:
    """Run one stage with its output going straight through."""
    started = time.monotonic()
    if stage.guard:
        guard = subprocess.run(stage.guard, cwd=ROOT, capture_output=True, text=True, check=False)
        if guard.returncode:
            # Any other code is a guard that broke: it must not pass for a machine that cannot.
            result = "skipped" if guard.returncode == CANNOT_RUN else "failed"
            return Outcome(stage.name, result, time.monotonic() - started, (guard.stdout + guard.stderr).strip())
    print(f"\n== {stage.name} tests", flush=True)
    command = [sys.executable, "-m", "pytest", f"tests/{stage.name}", "--durations=5"]
    passed = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    return Outcome(stage.name, "passed" if passed else "failed", time.monotonic() - started)


def main() -> int:
    """Run all stages; a failed one does not keep the later ones from telling what they know."""
    outcomes = [run(stage) for stage in STAGES]
    SUMMARY.parent.mkdir(exist_ok=True)
    SUMMARY.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(f"\n{'stage':<10} {'result':<8} {'seconds':>8}")
    for outcome in outcomes:
        print(f"{outcome.stage:<10} {outcome.result:<8} {outcome.seconds:>8.1f}  {outcome.note}".rstrip())
    return int(any(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
