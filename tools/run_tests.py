"""Runs the test stages that this machine can run, and prints where the time went.

The unit tests run first, alone, because they find plain mistakes in seconds. Then the cluster tests, which mostly wait
for pods, run beside the other stages. Those that take a processor share one pool of workers, so that no worker is idle
while a stage ends. A stage that cannot run here says why in the table. The table is also written to
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
_TESTS_FAILED = 1  # pytest's code for a complete call with failed tests


@dataclass(frozen=True)
class Stage:
    """One directory of tests.

    ``guard`` is a command that ends with 3, and says why, where the stage cannot run. ``distribution`` is how
    pytest-xdist gives the tests to its workers; without it there are no workers. Pooled stages are one call of pytest.
    A stage that mostly ``waits`` runs beside the others, which follow one another.
    """

    name: str
    guard: tuple[str, ...] = ()
    distribution: str = ""
    pooled: bool = False
    waits: bool = False


@dataclass(frozen=True)
class Outcome:
    """The result of a stage: ``passed``, ``failed`` or ``skipped``. For stages of a pool, the seconds of the tests are
    added.
    """

    stage: str
    result: str
    seconds: float
    note: str = ""
    skipped_tests: int = 0


# tests/conftest.py deals out the tests of the pool. It ends with the contract tests, whose many small files leave no
# worker alone. Unit tests share nothing that takes time.
STAGES = (
    Stage("unit", distribution="worksteal"),
    Stage("emulated", (sys.executable, "tests/support/gpus/emulated_gpu_requirements.py"), "loadscope", pooled=True),
    Stage("scripts", (), "loadscope", pooled=True),
    Stage("contract", (), "loadscope", pooled=True),
    Stage("cluster", (sys.executable, "-m", "dev.cluster", "can-run"), "loadgroup", waits=True),
    Stage("gpu", (sys.executable, "tests/support/gpus/cuda_requirements.py")),
)
PROCESSORS = min(os.cpu_count() or 1, 8)
# Tests wait for processes to start and end, and for hangs to be noticed: more workers than processors use that time.
# Those of the cluster wait for its pods, of which more at once would also take longer.
WORKERS = {"worksteal": PROCESSORS, "loadscope": PROCESSORS + 3, "loadgroup": 3}


def run(stages: tuple[Stage, ...], marks: str, output: IO[str] = sys.stdout) -> list[Outcome]:
    """Run the tests of stages that have these marks in one call of pytest."""
    outcomes = [outcome for stage in stages if (outcome := hindered(stage))]
    able = [stage for stage in stages if stage.name not in {outcome.stage for outcome in outcomes}]
    if not able:
        return outcomes
    names = [stage.name for stage in able]
    print(f"\n== {', '.join(names)} tests", file=output, flush=True)
    told = BUILD / f"{'-'.join(names)}-tests.xml"
    told.unlink(missing_ok=True)
    places = [f"tests/{name}" for name in names]
    command = [sys.executable, "-m", "pytest", *places, "--durations=10", f"--junit-xml={told}"]
    if distribution := able[0].distribution:
        # In the order of collection, which begins with the long tests, and not with the files that have the most.
        order = "--no-loadscope-reorder"
        command += ["-p", "xdist", f"--numprocesses={WORKERS[distribution]}", f"--dist={distribution}", order]
    if marks:
        command += ["-m", marks]
    if able[0].pooled:
        # The cluster tests beside them end last, and have pods that may take only so long to start.
        command = ["nice", "-n", "5", *command]
    started = time.monotonic()
    environment = _environment(bool(distribution))
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True, check=False
    )
    seconds = time.monotonic() - started
    return outcomes + outcomes_of(able, told, done.returncode, seconds)


def hindered(stage: Stage) -> Outcome | None:
    """Return the outcome of a stage that cannot run here."""
    started = time.monotonic()
    if not stage.guard:
        return None
    guard = subprocess.run(stage.guard, cwd=ROOT, capture_output=True, text=True, check=False)
    if not guard.returncode:
        return None
    # Any other code is a broken guard, which must not count as a skip.
    result = "skipped" if guard.returncode == CANNOT_RUN else "failed"
    return Outcome(stage.name, result, time.monotonic() - started, (guard.stdout + guard.stderr).strip())


def _environment(is_distributed: bool) -> dict[str, str]:
    # Thousands of processes import the same packages, some from a copy that only a test has: each would compile them.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Workers use all processors; several threads of torch in each would wait for one another.
    return own | ({"OMP_NUM_THREADS": "1"} if is_distributed else {})


def outcomes_of(stages: list[Stage], told: Path, code: int, seconds: float) -> list[Outcome]:
    """Return the results of a pytest call for each of its stages, by the tests in its result file."""
    cases = list(ElementTree.parse(told).iter("testcase")) if told.is_file() else []
    of_stages = {
        stage.name: [each for each in cases if each.get("classname", "").startswith(f"tests.{stage.name}.")]
        for stage in stages
    }
    failed = {
        name
        for name, tests in of_stages.items()
        if any(each.tag in ("failure", "error") for test in tests for each in test)
    }
    if code not in (0, _TESTS_FAILED) or (code and not failed):
        failed = set(of_stages)  # it did not reach its tests, or not their end
    return [
        Outcome(
            name,
            "failed" if name in failed else "passed",
            seconds if len(stages) == 1 else sum(float(test.get("time", 0)) for test in tests),
            skipped_tests=sum(test.find("skipped") is not None for test in tests),
        )
        for name, tests in of_stages.items()
    ]


def run_all(stages: tuple[Stage, ...], marks: str) -> list[Outcome]:
    """Run the first stage alone unless it is of the pool, then the pool beside those that mostly wait."""
    first = () if stages[0].pooled else stages[:1]
    outcomes = run(first, marks)
    pool = tuple(stage for stage in stages if stage.pooled)
    calls = [*([pool] if pool else []), *((stage,) for stage in stages[len(first) :] if not stage.pooled)]
    with ThreadPoolExecutor(1) as waiting, ThreadPoolExecutor(1) as computing:
        started = []
        for call in calls:
            log = (BUILD / f"{'-'.join(stage.name for stage in call)}-tests.log").open("w")
            lane = waiting if call[0].waits else computing
            started.append((log, lane.submit(run, call, marks, log)))
        return outcomes + [outcome for log, future in started for outcome in shown(log, future)]


def shown(written: IO[str], outcome: Future[list[Outcome]]) -> list[Outcome]:
    """Stream the output of a call until it ends."""
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
    parser.add_argument(
        "--marks", default="", metavar="EXPRESSION", help="run the tests with these marks: slow, 'not slow'"
    )
    asked = parser.parse_args()
    if unknown := set(asked.stages) - {stage.name for stage in STAGES}:
        parser.error(f"no stage is called {', '.join(sorted(unknown))}")
    BUILD.mkdir(exist_ok=True)
    chosen = tuple(stage for stage in STAGES if not asked.stages or stage.name in asked.stages)
    outcomes = run_all(chosen, asked.marks)
    SUMMARY.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(f"\n{'stage':<10} {'result':<8} {'seconds':>8}")
    for outcome in outcomes:
        note = outcome.note or (f"{outcome.skipped_tests} tests skipped" if outcome.skipped_tests else "")
        print(f"{outcome.stage:<10} {outcome.result:<8} {outcome.seconds:>8.1f}  {note}".rstrip())
    return int(any(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
