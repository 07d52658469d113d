"""`memtune trace MODULE:FACTORY`: trace a model of the user's, without a GPU and without its memory.

The parser of every command imports this file for its defaults, so that it imports the rest where it is needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memtune.units import counted
from memtune_cli.errors import InputError, installing
from memtune_cli.views.screen import stdout_screen

if TYPE_CHECKING:
    from memtune.api import Job
    from memtune.memory.replay.traced import TracedModel

BATCH, MEMORY, TIME_LIMIT_SECONDS = 2, "4Gi", 300
# The tracer keeps the limit itself, unless somebody stops it.
_GRACE_SECONDS = 30


def run(arguments: argparse.Namespace) -> int:
    """Trace in a process of its own, so that what goes wrong in the user's code goes wrong there."""
    from memtune.wire.trace import loads

    output: Path = arguments.output or Path(f"{arguments.factory.replace(':', '.')}.trace.json")
    trace_into(
        output, arguments.factory, arguments.sequence_length, arguments.numerics,
        arguments.batch, arguments.memory, arguments.time_limit,
    )  # fmt: skip
    traced = loads(output.read_text())
    blocks = counted(traced.blocks, "repeated block")
    lines = [
        f"{output}: {traced.model}, {traced.total:,} parameters, {blocks}, {traced.sequence_length} tokens a row",
        *(f"  Assumed: {each}" for each in traced.assumed),
        f"  memtune timeline {output} --plan bf16-z2-sel-mb4x8",
    ]
    print(stdout_screen().plain("\n".join(lines)))
    return 0


def trace_into(
    output: Path,
    factory: str,
    sequence_length: int,
    numerics: Sequence[str],
    batch: int = BATCH,
    memory: str = MEMORY,
    time_limit: int = TIME_LIMIT_SECONDS,
    told_as: str = "",
) -> None:
    """Write the trace of a factory to a file. ``told_as`` is what the user knows it by, if by another name."""
    _check_torch("tracing")
    words = [factory, "--batch", str(batch), "--sequence-length", str(sequence_length)]
    _trace([*words, "--time-limit", str(time_limit), "--numerics", *numerics], memory, time_limit, output, told_as)


def traced_model(job: Job) -> TracedModel:
    """What a job's factory builds, traced here as a pod of the job would."""
    from tempfile import TemporaryDirectory

    from memtune.api import factory
    from memtune.memory.replay.traced import TracedModel
    from memtune.wire.names import short_hash
    from memtune.wire.trace import loads

    _check_torch("a job with spec.model.factory is predicted by tracing, and that")
    with TemporaryDirectory() as directory:
        output = Path(directory) / "trace.json"
        _trace(factory.tracing_words(job), MEMORY, factory.TIME_LIMIT_SECONDS, output)
        text = output.read_text()
    return TracedModel(short_hash(text, 16), loads(text))


def _check_torch(what: str) -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise InputError(f"{what} needs torch, which is not installed; {installing('cli,runner')}")


def _trace(words: list[str], memory: str, time_limit: int, output: Path, told_as: str = "") -> None:
    import subprocess

    name = told_as or words[0]
    # What the factory prints may have no end.
    words = [*words, "--quiet", "--memory", memory, "--output", str(output)]
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "memtune_runner", "trace", *words],
            check=False, capture_output=True, text=True, errors="replace", timeout=time_limit + _GRACE_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{name}: tracing took longer than {time_limit} s and had to be ended; give a "
            "larger --time-limit if it needs more"
        ) from None
    if ended.returncode or not output.exists():
        raise InputError(f"{name}: {ended.stdout.strip() or _ended_with(ended.returncode, ended.stderr)}")


def _ended_with(code: int, printed: str) -> str:
    words = ": ".join(["for no reason that the factory has", *printed.strip().splitlines()[-1:]])
    return f"the process that watches the one that traces it ended with {code}, {words}"
