"""`memtune trace MODULE:FACTORY`: trace a model of the user's, without a GPU and without its memory."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

from memtune.trace import loads
from memtune.units import counted
from memtune_cli.errors import InputError
from memtune_cli.screen import stdout_screen

# A process that does not answer its own alarm is stuck outside of Python.
_GRACE_SECONDS = 10


def run(arguments: argparse.Namespace) -> int:
    """Trace in a process of its own, so that what goes wrong in the user's code goes wrong there."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("memtune trace needs torch, which is not installed; pip install 'memtune[cli,runner]'")
    output: Path = arguments.output or Path(f"{arguments.factory.replace(':', '.')}.trace.json")
    _trace(arguments, output)
    traced = loads(output.read_text())
    blocks = counted(traced.blocks, "repeated block")
    print(
        stdout_screen().plain(
            f"{output}: {traced.model}, {traced.total:,} parameters, {blocks}, {traced.sequence_length} tokens a row\n"
            f"  memtune timeline {output} --plan bf16-z2-sel-mb4x8"
        )
    )
    return 0


def _trace(arguments: argparse.Namespace, output: Path) -> None:
    command = [sys.executable, "-m", "memtune_runner.tracing", arguments.factory, "--output", str(output)]
    command += ["--batch", str(arguments.batch), "--sequence-length", str(arguments.sequence_length)]
    command += ["--memory", arguments.memory, "--time-limit", str(arguments.time_limit)]
    command += ["--numerics", *arguments.numerics]
    try:
        ended = subprocess.run(
            command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            timeout=arguments.time_limit + _GRACE_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{arguments.factory}: tracing took longer than {arguments.time_limit} s and had to be ended; give a "
            "larger --time-limit if it needs more"
        ) from None
    if ended.returncode:
        raise InputError(f"{arguments.factory}: {_last_words(ended.stderr, ended.returncode)}")


def _last_words(stderr: str, code: int) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    if not lines or code < 0:
        return f"the process that traced it ended with {code}; if it was killed for memory, give a larger --memory"
    return lines[-1]
