"""Turns a Python process started by the user's program, such as a shell, into a rank's worker with hooks.

It hooks the first Python process that runs a script or a module and has no hooked ancestor. Loaders, compilers and
other helpers of a hooked process are left alone, as are the `python -c` lines with which shells ask for versions.
Launchers such as torchrun are skipped here too, because the ranks are already running.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from memtune.wire import environment
from memtune_runner.command import worker_command
from memtune_runner.command.command import CommandError, Kind, parse


def take_place(words: Sequence[str], variables: MutableMapping[str, str]) -> None:
    """Replace this process by the worker that runs the same script; return if it does not run a rank's script."""
    try:
        command = parse(words)
    except CommandError:
        return  # Python reports a wrong command line itself
    variables.update(worker_command.variables(command))
    if command.kind is Kind.PROGRAM and command.target != words[0]:
        os.execvpe(command.target, [command.target, *command.arguments], variables)  # torchrun --no-python PROGRAM
    if command.kind not in (Kind.SCRIPT, Kind.MODULE):
        return
    # Several scripts may run one after the other, and each reports for itself.
    directory = Path(variables[environment.RANK_DIRECTORY]) / str(os.getpid())
    directory.mkdir(exist_ok=True)
    variables[environment.RANK_DIRECTORY] = str(directory)
    variables[environment.HOOKED] = "1"
    python = (sys.executable, *command.interpreter[1:])
    os.execv(sys.executable, worker_command.words(command, python, variables.get("LOCAL_RANK", "0")))
