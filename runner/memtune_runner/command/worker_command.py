"""Builds the command line of a worker, and the variables that bring the hooks into other programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from memtune.wire import environment
from memtune_runner.command.command import Command, Kind

ENTER_DIRECTORY = Path(__file__).parent.parent / "enter"
_ENTRY = ENTER_DIRECTORY / "run_worker.py"


def words(command: Command, python: Sequence[str], local_rank: str) -> list[str]:
    """Return the command line that runs ``command`` in one rank."""
    options = [f"{command.local_rank}={local_rank}"] if command.local_rank else []
    if command.kind is Kind.PROGRAM:
        return [command.target, *options, *command.arguments]
    return [*python, str(_ENTRY), str(command.kind), command.target, *options, *command.arguments]


def variables(command: Command) -> dict[str, str]:
    """Return the variables that the worker needs besides its rank."""
    options = command.accelerate_options
    return {
        **({environment.LAUNCHED: "1"} if command.launcher else {}),
        **({environment.ACCELERATE_OPTIONS: json.dumps(options)} if options else {}),
    }
