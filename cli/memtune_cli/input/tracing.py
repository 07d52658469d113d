"""Model traces: made in a child process, or read from a file written by `memtune trace`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memtune_cli.errors import InputError, installing

if TYPE_CHECKING:
    from memtune.api import Job
    from memtune.memory.traced_model import TracedModel
    from memtune.wire.trace import Trace

# The parser imports this module for these defaults, so heavy imports are local.
BATCH, MEMORY, TIME_LIMIT_SECONDS = 2, "4Gi", 300
# The tracer enforces the limit itself; this margin is for one that is stopped.
_GRACE_SECONDS = 30


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
    """Write the trace of a factory to a file. ``told_as`` is the name shown to the user, if it differs."""
    _check_torch("tracing")
    words = [factory, "--batch", str(batch), "--sequence-length", str(sequence_length)]
    _trace([*words, "--time-limit", str(time_limit), "--numerics", *numerics], memory, time_limit, output, told_as)


def traced_model(job: Job) -> TracedModel:
    """Trace the model of a job's factory, like the job's trace pod does."""
    from tempfile import TemporaryDirectory

    from memtune.api import factory
    from memtune.memory.traced_model import TracedModel
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
    # The factory's output may be endless.
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


def read_trace(file: str) -> Trace:
    """The trace in a file."""
    from memtune.wire.trace import TraceError, loads

    try:
        return loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}; give a file that memtune trace wrote") from None
    except TraceError as error:
        raise InputError(f"{file}: {error}") from None
