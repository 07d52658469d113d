"""``python -m memtune_runner.tracing FACTORY``: traces in a process of its own, within limits, and writes a file."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from memtune import environment
from memtune.trace import NUMERICS, Trace, dumps
from memtune.trace_message import LONGEST_BYTES, pack
from memtune.units import parse_bytes
from memtune_runner.tracing import TracingError, trace
from memtune_runner.volumes import Volumes


def main(argv: Sequence[str] | None = None) -> int:
    """Trace a factory; 2 and a sentence on standard error if that is impossible."""
    arguments = _parser().parse_args(argv)
    # Not the address space: torch reserves far more of it than it uses.
    resource.setrlimit(resource.RLIMIT_DATA, (arguments.memory, arguments.memory))
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(arguments.time_limit)
    volumes = Volumes(os.environ.get(environment.TRACE_VOLUMES, ""))
    volumes.watch()
    try:
        made = trace(
            arguments.factory,
            arguments.batch,
            arguments.sequence_length,
            arguments.numerics,
            arguments=arguments.arguments,
            loss_autocast=arguments.loss_autocast,
        )
        made = replace(made, mounted=volumes.had_part())
        arguments.output.write_text(_message(made) if arguments.message else dumps(made))
    except (TracingError, _OutOfTime) as error:
        print(error, file=sys.stderr)
        if arguments.message:
            arguments.output.write_text(str(error))
        return 2
    except OSError as error:
        print(f"{arguments.output} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _message(made: Trace) -> str:
    text = pack(made)
    if len(text) > LONGEST_BYTES:
        raise TracingError(
            f"the trace of {made.model} takes {len(text):,} bytes, and a pod's last words may have {LONGEST_BYTES:,}; "
            "its blocks differ too much from each other to be told in fewer"
        )
    return text


class _OutOfTime(BaseException):
    """Not an Exception, so that no handler of the user's swallows it."""


def _out_of_time(_signal: int, frame: FrameType | None) -> None:
    place = f" in {frame.f_code.co_filename}, line {frame.f_lineno}" if frame else ""
    raise _OutOfTime(f"tracing took longer than it may{place}; give a larger --time-limit if it needs more")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m memtune_runner.tracing", description="Traces a model.")
    parser.add_argument("factory", help="module:function")
    parser.add_argument("--batch", type=int, required=True, help="rows of a micro-batch")
    parser.add_argument("--sequence-length", type=int, required=True, help="tokens of a row")
    parser.add_argument("--numerics", nargs="+", choices=NUMERICS, default=NUMERICS)
    parser.add_argument("--arguments", type=json.loads, default={}, help="what else the factory gets, in JSON")
    parser.add_argument("--loss-autocast", action="store_true", help="compute the loss as the runner's engine does")
    parser.add_argument("--message", action="store_true", help="write a pod's last words, also of what went wrong")
    parser.add_argument("--memory", type=parse_bytes, required=True, help="the most host memory it may take")
    parser.add_argument("--time-limit", type=int, required=True, help="the most seconds it may take")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    return parser


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    # At once: nothing of the user's may run now, like a thread that waits or what prints at the end, for the last line
    # is ours; and the alarm has no handler any more when Python ends.
    os._exit(ended)
