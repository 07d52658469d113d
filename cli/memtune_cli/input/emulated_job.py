"""Runs a job's command on an emulated GPU, after checking that it can."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from memtune.wire.report import LOG_MARK
from memtune_cli.errors import InputError

if TYPE_CHECKING:
    from memtune.api import Job
    from memtune.plans.plan import Plan
    from memtune.wire.report import Report
    from memtune_cli.input.emulated_forks import EmulatedForks, Process

# The defaults of `memtune emulate` and of the pytest plugin.
GPU, TIME_LIMIT_SECONDS = "h100-80gb", 600
# Time for a command that exceeded its limit to write its result.
_GRACE_SECONDS = 20
# Time to read what it said last.
_LAST_WORDS_SECONDS = 2
# Fields that only the emulated process knows; None if it never used the GPU or was killed.
_FOUND = (
    *(
        "phaseBytes",
        "peakBytesByGpu",
        "hostPeakBytes",
        "pinnedPeakBytes",
        "kernelLaunches",
        "matrixProducts",
        "collectives",
        "stepSeconds",
    ),
    *("otherProcesses", "stubs", "compilations", "values", "torch", "history"),
)


class EmulationRefusedError(InputError):
    """The job's command cannot be run on an emulated GPU here. ``code`` is the exit code of `memtune emulate`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def prepare(job: Job, directory: Path) -> None:
    """Check that the command's Python has a CUDA build of torch, and build the emulation for it.

    The runner must already be in ``directory``. Jobs that cannot run here on any device are not reported.
    """
    from memtune.wire.run import Run, RunKind
    from memtune_operator.local.backend import refusal_of, started_here
    from memtune_operator.pods.preflight import ANY_PLAN
    from memtune_runner.emulated import exit_codes

    if refusal_of(job):
        return
    command = started_here(job, Run(RunKind.PROBE, 1, ANY_PLAN), directory)
    words, variables = command.expanded()
    users = words[words.index("--") + 1 :]
    try:
        done = subprocess.run(
            [words[0], "-m", "memtune_runner", "prepare-emulation", "--", *users],
            check=False, capture_output=True, text=True, env=variables, cwd=command.workdir,
        )  # fmt: skip
    except OSError as error:
        raise EmulationRefusedError(
            f"the command of {job.metadata.name} could not be started: {error}", exit_codes.BAD_INPUT
        ) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("memtune: ")
        advice = (
            "; activate its environment, or name its Python in the command: a launcher runs the one that it came with"
            if done.returncode == exit_codes.NO_TORCH_OR_COMPILER
            else ""
        )
        raise EmulationRefusedError(
            f"{job.metadata.name} cannot run on an emulated GPU: {said}{advice}", done.returncode
        )


def emulated(
    job: Job, plan: Plan, number: int, directory: Path, time_limit: int, snapshot: Path | None, forks: EmulatedForks
) -> dict[str, Any]:
    """Run a few steps of the job's command under a plan; return how it ended and its memory."""
    from memtune.wire import environment
    from memtune.wire.run import Run, RunKind
    from memtune_operator.local.backend import started_here
    from memtune_operator.local.runs import with_files

    own = directory / f"emulated-{number}"
    own.mkdir()
    result = own / "emulated.json"
    command = started_here(job, Run(RunKind.PROBE, number, plan), directory)
    extra = {environment.EMULATED_RESULT: str(result)}
    if snapshot:
        extra[environment.EMULATED_SNAPSHOT] = str(snapshot)
    words, variables = command._replace(variables=with_files(command.variables, own)).expanded(extra)
    started = time.monotonic()
    if checkpoints := variables.get(environment.CHECKPOINT_PATH):
        Path(checkpoints).mkdir(parents=True, exist_ok=True)
    code = _run(forks.start(plan, words, variables, command.workdir), time_limit)
    found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    return _result(plan, code, time.monotonic() - started, _report(own), found)


def _run(process: Process, time_limit: int) -> int | None:
    """Wait for a run with its output on stderr; return its exit code, or None after a timeout."""
    assert process.stdout is not None
    shown = threading.Thread(target=_show, args=(process.stdout,), daemon=True)
    shown.start()
    try:
        return process.wait(time_limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # A process that left the group may keep the pipe open.
        shown.join(_LAST_WORDS_SECONDS)


def _show(output: IO[bytes]) -> None:
    """Print the output without the report, which the page shows."""
    with output:
        for line in output:
            if not line.startswith(LOG_MARK.encode()):
                print(line.decode(errors="replace"), end="", file=sys.stderr, flush=True)


def _report(directory: Path) -> Report | None:
    from memtune.wire.report import read_report
    from memtune.wire.report_checks import ReportError

    try:
        return read_report((directory / "report.json").read_bytes())
    except (OSError, ReportError):
        return None


def _result(
    plan: Plan, code: int | None, seconds: float, report: Report | None, found: dict[str, Any]
) -> dict[str, Any]:
    from memtune.wire.report import Ending
    from memtune_runner.emulated.exit_codes import COMPLETED, FAILED, OUT_OF_MEMORY, TIME_LIMIT

    memory = report.memory if report else None
    outcome = TIME_LIMIT if code is None else COMPLETED if code == 0 else FAILED
    if code and report and report.ending is Ending.DEVICE_OOM:
        outcome = OUT_OF_MEMORY
    is_measured = memory is not None and memory.peak_reserved_bytes is not None
    return {
        "plan": str(plan),
        "outcome": outcome,
        "message": report.message if report and code else "",
        "exitCode": code,
        "seconds": round(seconds, 1),
        "steps": (report.steps if report else None) or 0,
        "peakBytes": {
            "allocated": memory.peak_allocated_bytes,
            "active": memory.peak_active_bytes,
            "reserved": memory.peak_reserved_bytes,
            "device": memory.peak_device_bytes,
        } if memory and is_measured else None,
        "allocatorRetries": (memory.alloc_retries if memory else None) or 0,
        **{name: found.get(name) for name in _FOUND},
    }  # fmt: skip
