"""Runs the test stages that this machine can run, and prints where the time went.

The unit tests run first, alone, because they find plain mistakes in seconds. Then the cluster tests, which mostly wait
for pods, run beside the other stages, which take a processor each and follow one another. The output is shown in the
order of the stages. A stage that cannot run here says why in the table. The table is also written to
build/test-stages.json, so that CI can tell a stage that passed from one that was skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
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
    """One directory of tests.

    ``guard`` is a command that ends with 3, and says why, where the stage cannot run. ``distribution`` is how
    pytest-xdist gives the tests to its workers, one for each processor; without it there are no workers. A stage that
    mostly ``waits`` runs beside the others, which follow one another.
    """

    name: str
    guard: tuple[str, ...] = ()
    distribution: str = ""
    waits: bool = False


@dataclass(frozen=True)
class Outcome:
    """The result of a stage: ``passed``, ``failed`` or ``skipped``."""

    stage: str
    result: str
    seconds: float
    note: str = ""
    skipped_tests: int = 0


# Tests of one file share what a fixture of their module has made, so a file stays with one worker. Unit tests share
# nothing that takes time.
STAGES = (
    Stage("unit", distribution="worksteal"),
    Stage("contract", distribution="loadfile"),
    Stage("cluster", guard=(sys.executable, "-m", "dev.cluster", "can-run"), waits=True),
    Stage("scripts", distribution="loadfile"),
    Stage("emulated", guard=(sys.executable, "tests/support/emulated_gpu.py"), distribution="worksteal"),
    Stage("gpu", guard=(sys.executable, "tests/support/cuda_gpu.py")),
)
WORKERS = min(os.cpu_count() or 1, 8)


def run(stage: Stage, with_slow: bool, output: IO[str] = sys.stdout) -> Outcome:
    """Run one stage, with or without the tests that are marked as slow."""
    started = time.monotonic()
    if stage.guard:
        guard = subprocess.run(stage.guard, cwd=ROOT, capture_output=True, text=True, check=False)
        if guard.returncode:
            # Any other code is a broken guard, which must not count as a skip.
            result = "skipped" if guard.returncode == CANNOT_RUN else "failed"
            return Outcome(stage.name, result, time.monotonic() - started, (guard.stdout + guard.stderr).strip())
    print(f"\n== {stage.name} tests", file=output, flush=True)
    told = BUILD / f"{stage.name}-tests.xml"
    told.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"tests/{stage.name}", "--durations=5", f"--junit-xml={told}"]
    if stage.distribution:
        # In the order of collection, which begins with the long tests, and not with the files that have the most.
        order = "--no-loadscope-reorder"
        command += ["-p", "xdist", f"--numprocesses={WORKERS}", f"--dist={stage.distribution}", order]
    if not with_slow:
        command += ["-m", "not slow"]
    # Each worker has a processor; two threads of torch on each would wait for one another.
    own = {**os.environ, "OMP_NUM_THREADS": "1"} if stage.distribution else None
    done = subprocess.run(command, cwd=ROOT, env=own, stdout=output, stderr=subprocess.STDOUT, text=True, check=False)
    skipped = int(ElementTree.parse(told).getroot()[0].get("skipped", 0)) if told.is_file() else 0
    result = "failed" if done.returncode else "passed"
    return Outcome(stage.name, result, time.monotonic() - started, skipped_tests=skipped)


def run_all(stages: tuple[Stage, ...], with_slow: bool) -> list[Outcome]:
    """Run the first stage alone, then those that mostly wait beside the others."""
    outcomes = [run(stages[0], with_slow)]
    with ThreadPoolExecutor(1) as waiting, ThreadPoolExecutor(1) as computing:
        started = []
        for stage in stages[1:]:
            log = (BUILD / f"{stage.name}-tests.log").open("w")
            lane = waiting if stage.waits else computing
            started.append((log, lane.submit(run, stage, with_slow, log)))
        return outcomes + [shown(log, outcome) for log, outcome in started]


def shown(written: IO[str], outcome: Future[Outcome]) -> Outcome:
    """Stream the output of a stage until it ends."""
    with written, Path(written.name).open() as log:
        while not outcome.done():
            print(log.read(), end="", flush=True)
            time.sleep(1)
        print(log.read(), end="", flush=True)
    return outcome.result()


def main() -> int:
    """Run all stages, or those that are named; a failed one does not keep the others from telling what they know."""
    parser = argparse.ArgumentParser(description="Runs the test stages that this machine can run.")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(stage.name for stage in STAGES))
    parser.add_argument("--without-slow", action="store_true", help="leave out the tests that are marked as slow")
    asked = parser.parse_args()
    if unknown := set(asked.stages) - {stage.name for stage in STAGES}:
        parser.error(f"no stage is called {', '.join(sorted(unknown))}")
    BUILD.mkdir(exist_ok=True)
    chosen = tuple(stage for stage in STAGES if not asked.stages or stage.name in asked.stages)
    outcomes = run_all(chosen, with_slow=not asked.without_slow)
    SUMMARY.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(f"\n{'stage':<10} {'result':<8} {'seconds':>8}")
    for outcome in outcomes:
        note = outcome.note or (f"{outcome.skipped_tests} tests skipped" if outcome.skipped_tests else "")
        print(f"{outcome.stage:<10} {outcome.result:<8} {outcome.seconds:>8.1f}  {note}".rstrip())
    return int(any(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
