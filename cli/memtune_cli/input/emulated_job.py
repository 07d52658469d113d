"""Runs a job's command on an emulated GPU, after checking that it can."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from memtune.wire.report import LOG_MARK
from memtune_cli.errors import InputError
from memtune_cli.input.emulated_forks import kill

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
    from memtune_operator.local.backend import blocker_of, started_here
    from memtune_operator.pods.preflight import ANY_PLAN
    from memtune_runner.emulated import exit_codes

    if blocker_of(job):
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


class EmulatedRun:
    """A few steps of the job's command under a plan, which have begun."""

    def __init__(
        self, job: Job, plan: Plan, number: int, directory: Path, snapshot: Path | None, forks: EmulatedForks
    ) -> None:
        from memtune.wire import environment
        from memtune.wire.run import Run, RunKind
        from memtune_operator.local.backend import started_here
        from memtune_operator.local.runs import with_files

        self.plan = plan
        self.host_bytes: int | None = None
        """The peak of its host memory, once it has ended; None if unknown."""
        self._own = directory / f"emulated-{number}"
        self._own.mkdir()
        self._result = self._own / "emulated.json"
        command = started_here(job, Run(RunKind.PROBE, number, plan), directory)
        extra = {environment.EMULATED_RESULT: str(self._result)}
        if snapshot:
            extra[environment.EMULATED_SNAPSHOT] = str(snapshot)
        words, variables = command._replace(variables=with_files(command.variables, self._own)).expanded(extra)
        self._started = time.monotonic()
        if checkpoints := variables.get(environment.CHECKPOINT_PATH):
            Path(checkpoints).mkdir(parents=True, exist_ok=True)
        self._process = forks.start(plan, words, variables, command.workdir)

    def ended(self, time_limit: int, say: Callable[[str], None]) -> dict[str, Any]:
        """Wait for it, and pass on its output; return how it ended and its memory."""
        code = _run(self._process, time_limit, say)
        found = json.loads(self._result.read_text(encoding="utf-8")) if self._result.exists() else {}
        self.host_bytes = found.get("residentPeakBytes")
        return _result(self.plan, code, time.monotonic() - self._started, _report(self._own), found)

    def kill(self) -> None:
        """End it with everything that it has started."""
        kill(self._process)


def _run(process: Process, time_limit: int, say: Callable[[str], None]) -> int | None:
    """Wait for a run, whose output is passed on; return its exit code, or None after a timeout."""
    assert process.stdout is not None
    shown = threading.Thread(target=_pass_on, args=(process.stdout, say), daemon=True)
    shown.start()
    try:
        return process.wait(time_limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        return None
    finally:
        kill(process)
        process.wait()
        # A process that left the group may keep the pipe open.
        shown.join(_LAST_WORDS_SECONDS)


def _pass_on(output: IO[bytes], say: Callable[[str], None]) -> None:
    """Pass on the output without the report, which the page shows."""
    with output:
        for line in output:
            if not line.startswith(LOG_MARK.encode()):
                say(line.decode(errors="replace"))


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
