"""Runs in the trace process: the only place that executes the user's code."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from memtune.wire import environment
from memtune.wire.trace import Trace, dumps
from memtune.wire.trace_message import LONGEST_BYTES, pack
from memtune_runner.rank.used_volumes import UsedVolumes
from memtune_runner.tracing.shared_status import Board

# The only outcome that is not an error message.
TRACED = "traced"


class Inside:
    """Traces a factory as the command line says."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments

    def __call__(self, board: Board) -> str:
        """Write the trace and return the outcome, or an error message."""
        if self._arguments.quiet:
            _print_nowhere()
        me = os.getpid()
        volumes = UsedVolumes(os.environ.get(environment.TRACE_VOLUMES, ""))
        volumes.watch()
        from memtune_runner.tracing import TracingError

        try:
            text = self._text(board, volumes)
        except TracingError as error:
            return str(error)
        if os.getpid() != me:
            return ""  # The factory forked, and both processes came here: the other one writes.
        board.set_place("while the trace was written")
        output = self._arguments.output
        try:
            output.write_text(text)
        except OSError as error:
            return f"{output} cannot be written: {error.strerror}"
        return TRACED

    def _text(self, board: Board, volumes: UsedVolumes) -> str:
        from memtune_runner.tracing import trace

        arguments = self._arguments
        made = trace(
            arguments.factory,
            arguments.batch,
            arguments.sequence_length,
            arguments.numerics,
            arguments=arguments.arguments,
            loss_autocast=arguments.loss_autocast,
            set_place=board.set_place,
        )
        made = replace(made, mounted=volumes.had_part())
        return _message(made) if arguments.message else dumps(made)


def _print_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _message(made: Trace) -> str:
    from memtune_runner.tracing import TracingError

    text = pack(made)
    if len(text) > LONGEST_BYTES:
        raise TracingError(
            f"the trace of {made.model} takes {len(text):,} bytes, and a pod's last words may have {LONGEST_BYTES:,}; "
            "its blocks differ too much from each other to be told in fewer"
        )
    return text
