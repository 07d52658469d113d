"""`memtune emulate -- COMMAND`: the memory of a training command, measured on an emulated GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from memtune_cli.errors import InputError
from memtune_cli.input.emulated_job import GPU
from memtune_cli.views.screen import stdout_screen

_OF_JOBS = (".yaml", ".yml", ".json")


def run(arguments: argparse.Namespace) -> int:
    """Run the command in a child process and show the result that it writes."""
    if _is_job(arguments.words):
        if arguments.rank:
            raise InputError("--rank: a job is emulated as rank 0; leave it out")
        if arguments.ranks:
            raise InputError("--ranks: a job says itself how many GPUs it has; set spec.resources, or leave it out")
        if arguments.gpus:
            raise InputError("--gpus: a job says itself how many GPUs it has; set spec.resources, or leave it out")
        from memtune_cli.commands.emulate_job import run as run_job

        return run_job(arguments)
    for option in ("plan", "top", "parallel", "timeline"):
        if getattr(arguments, option) is not None:
            raise InputError(f"--{option} is for a job: memtune emulate JOB.yaml --{option} ...")
    return _run_command(arguments)


def _is_job(words: Sequence[str]) -> bool:
    """Whether the single word is a job file rather than a command."""
    return len(words) == 1 and (words[0] == "-" or words[0].endswith(_OF_JOBS))


def _run_command(arguments: argparse.Namespace) -> int:
    from memtune_cli.views import json_output
    from memtune_cli.views.emulate_page import page_of_command

    with TemporaryDirectory() as directory:
        output = Path(directory) / "result.json"
        words = ["--gpu", arguments.gpu or GPU, "--time-limit", str(arguments.time_limit), "--output", str(output)]
        if arguments.ranks:
            words += ["--ranks", str(arguments.ranks)]
        if arguments.rank:
            words += ["--rank", str(arguments.rank)]
        if arguments.gpus:
            words += ["--gpus", str(arguments.gpus)]
        if arguments.snapshot:
            words += ["--snapshot", str(arguments.snapshot)]
        command = [sys.executable, "-m", "memtune_runner", "emulate", *words, "--", *arguments.words]
        code = subprocess.run(command, check=False).returncode
        if not output.exists():
            return code  # the reason has been printed
        result = json.loads(output.read_text(encoding="utf-8"))
    if arguments.format == "table":
        screen = stdout_screen()
        print(screen.plain("\n".join(page_of_command(screen, result))))
    else:
        print(json_output.dump({"version": json_output.VERSION, "command": "emulate", **result}, arguments.format))
    return code
