"""``python -m memtune_runner trace FACTORY``: traces in a subprocess with limits and writes a trace file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from memtune.units import parse_bytes
from memtune.wire.trace import NUMERICS
from memtune_runner.trace_process.child_process import TRACED, Inside
from memtune_runner.trace_process.supervisor import Limits, watched


def main(argv: Sequence[str] | None = None) -> int:
    """Trace a factory. On failure return 2 and print only the error message to standard output."""
    arguments = _parser().parse_args(argv)
    # The factory may change directory.
    arguments.output = arguments.output.absolute()
    outcome = watched(Inside(arguments), Limits(arguments.time_limit, arguments.memory))
    if outcome == TRACED:
        return 0
    print(outcome, flush=True)
    if arguments.message:
        with suppress(OSError):  # a log already has the message
            arguments.output.write_text(outcome)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m memtune_runner trace", description="Traces a model.")
    parser.add_argument("factory", help="module:function")
    parser.add_argument("--batch", type=int, required=True, help="rows of a micro-batch")
    parser.add_argument("--sequence-length", type=int, required=True, help="tokens of a row")
    parser.add_argument("--numerics", nargs="+", choices=NUMERICS, default=NUMERICS)
    parser.add_argument("--arguments", type=json.loads, default={}, help="what else the factory gets, in JSON")
    parser.add_argument("--loss-autocast", action="store_true", help="compute the loss as the runner's engine does")
    parser.add_argument("--message", action="store_true", help="write a pod's last words, also of what went wrong")
    parser.add_argument("--quiet", action="store_true", help="let the factory print nothing")
    parser.add_argument("--memory", type=parse_bytes, required=True, help="the most host memory it may take")
    parser.add_argument("--time-limit", type=int, required=True, help="the most seconds it may take")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    return parser
