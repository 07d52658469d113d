"""What the commands that run a job on an emulated GPU find out before they start anything."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from memtune_cli.errors import InputError

if TYPE_CHECKING:
    from memtune.spec import Job


_NO_TORCH = 3


class EmulationRefusedError(InputError):
    """The job's command cannot be run on an emulated GPU here. ``code`` is the exit code of `memtune emulate`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def prepare(job: Job, directory: Path) -> None:
    """See that the Python of the job's command has a CUDA build of torch, and build the emulation for it.

    The runner lies in ``directory`` already. Nothing is said of a job that cannot be run here on any device.
    """
    from memtune.references import substitute
    from memtune.run import Run, RunKind
    from memtune_operator.local import refusal_of, started_here
    from memtune_operator.preflight import ANY_PLAN

    if refusal_of(job):
        return
    command = started_here(job, Run(RunKind.PROBE, 1, ANY_PLAN), directory)
    variables = command.variables_here()
    users = command.words[command.words.index("--") + 1 :]
    words = [command.words[0], "-m", "memtune_runner", "prepare-emulation", "--", *users]
    done = subprocess.run(
        [substitute(word, variables) for word in words],
        check=False, capture_output=True, text=True, env=variables, cwd=command.workdir,
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("memtune: ")
        advice = "; activate its environment, or set spec.runner.python" if done.returncode == _NO_TORCH else ""
        raise EmulationRefusedError(
            f"{job.metadata.name} cannot run on an emulated GPU: {said}{advice}", done.returncode
        )
