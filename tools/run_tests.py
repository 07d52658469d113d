"""Runs every test stage that can run on this machine, and prints where the time went.

The unit tests run first, alone, because they find plain mistakes in seconds. The other stages then run two at a time,
and their output is shown in order. A stage that cannot run here says why in the table. The table is also written to
build/test-stages.json, so that CI can tell a stage that passed from one that was skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SUMMARY = BUILD / "test-stages.json"
CANNOT_RUN = 3


@dataclass(frozen=True)
class Stage:
    """One directory of tests; ``guard`` is a command that exits with 3 and a reason if the stage cannot run here.

    Its files may be split into several ``shares`` that run in parallel.
    """

    name: str
    guard: tuple[str, ...] = ()
    shares: int = 1


@dataclass(frozen=True)
class Outcome:
    """The result of a stage: ``passed``, ``failed`` or ``skipped``."""

    stage: str
    result: str
    seconds: float
    note: str = ""
    skipped_tests: int = 0


STAGES = (
    Stage("unit", shares=min(os.cpu_count() or 1, 8)),
    Stage("contract"),
    Stage("cluster", guard=(sys.executable, "-m", "dev.cluster", "can-run")),
    Stage("scripts"),
    Stage("emulated", guard=(sys.executable, "tests/support/emulated_gpu.py")),
    Stage("gpu", guard=(sys.executable, "tests/support/cuda_gpu.py")),
)


def run(stage: Stage, output: IO[str] = sys.stdout) -> Outcome:
    """Run one stage."""
    started = time.monotonic()
    if stage.guard:
        guard = subprocess.run(stage.guard, cwd=ROOT, capture_output=True, text=True, check=False)
        if guard.returncode:
            # Any other code is a broken guard, which must not count as a skip.
            result = "skipped" if guard.returncode == CANNOT_RUN else "failed"
            return Outcome(stage.name, result, time.monotonic() - started, (guard.stdout + guard.stderr).strip())
    print(f"\n== {stage.name} tests", file=output, flush=True)
    with ThreadPoolExecutor(stage.shares) as pool:
        shares = list(pool.map(lambda number: _run_share(stage, number, output), range(stage.shares)))
    result = "failed" if any(code for code, _ in shares) else "passed"
    return Outcome(stage.name, result, time.monotonic() - started, skipped_tests=sum(skipped for _, skipped in shares))


def _run_share(stage: Stage, number: int, output: IO[str]) -> tuple[int, int]:
    """Run one share of a stage; return its exit code and number of skipped tests. With several shares, output is
    printed at the end.

    Independent processes are faster than workers that are given one test at a time.
    """
    told = BUILD / f"{stage.name}-tests-{number}.xml"
    told.unlink(missing_ok=True)
    others = (f"--ignore={path}" for path in _others(stage, number))
    command = [sys.executable, "-m", "pytest", f"tests/{stage.name}", *others, "--durations=5", f"--junit-xml={told}"]
    stdout = output if stage.shares == 1 else subprocess.PIPE
    done = subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout or "", end="", file=output, flush=True)
    skipped = int(ElementTree.parse(told).getroot()[0].get("skipped", 0)) if told.is_file() else 0
    return done.returncode, skipped


def _others(stage: Stage, number: int) -> list[str]:
    """The files outside one share: files are dealt out back and forth, largest first, for shares of equal size.

    Given the included files instead, pytest would scan the whole directory once per file.
    """
    files = (ROOT / "tests" / stage.name).glob("test_*.py")
    ordered = sorted(files, key=lambda path: (-path.stat().st_size, path.name))
    turn = [*range(stage.shares), *reversed(range(stage.shares))]
    return [str(path.relative_to(ROOT)) for place, path in enumerate(ordered) if turn[place % len(turn)] != number]


def run_all(stages: tuple[Stage, ...]) -> list[Outcome]:
    """Run the first stage alone, then the others two at a time, since cluster stages mostly wait for pods."""
    outcomes = [run(stages[0])]
    with ThreadPoolExecutor(2) as pool:
        logs = {stage: (BUILD / f"{stage.name}-tests.log").open("w") for stage in stages[1:]}
        started = [(log, pool.submit(run, stage, log)) for stage, log in logs.items()]
        return outcomes + [shown(log, outcome) for log, outcome in started]


def shown(written: IO[str], outcome: Future[Outcome]) -> Outcome:
    """Stream the output of a stage until it ends."""
    with written, Path(written.name).open() as log:
        while not outcome.done():
            print(log.read(), end="", flush=True)
            time.sleep(1)
        print(log.read(), end="", flush=True)
    return outcome.result()


def main(names: Sequence[str]) -> int:
    """Run all stages, or the named ones; a failure does not stop the others."""
    if unknown := set(names) - {stage.name for stage in STAGES}:
        print(f"no stage is called {', '.join(sorted(unknown))}: there are {', '.join(s.name for s in STAGES)}")
        return 2
    BUILD.mkdir(exist_ok=True)
    outcomes = run_all(tuple(stage for stage in STAGES if not names or stage.name in names))
    SUMMARY.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(f"\n{'stage':<10} {'result':<8} {'seconds':>8}")
    for outcome in outcomes:
        note = outcome.note or (f"{outcome.skipped_tests} tests skipped" if outcome.skipped_tests else "")
        print(f"{outcome.stage:<10} {outcome.result:<8} {outcome.seconds:>8.1f}  {note}".rstrip())
    return int(any(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
