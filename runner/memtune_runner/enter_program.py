"""What happens in a Python that a program of the user's started, such as a shell: a rank's script gets its hooks.

The rule: the first Python above which no other has the hooks, and which runs a script or a module. So loaders,
compilers and other helpers of a hooked process are left alone, and so are the `python -c` lines with which shells ask
for versions. Launchers such as torchrun are left out here, too, because the ranks are started already.
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
    """Become the worker that runs the same script; return if this Python is none of a rank's own."""
    try:
        command = parse(words)
    except CommandError:
        return  # Python itself says what is wrong with its command line
    variables.update(worker_command.variables(command))
    if command.kind is Kind.PROGRAM and command.target != words[0]:
        os.execvpe(command.target, [command.target, *command.arguments], variables)  # torchrun --no-python PROGRAM
    if command.kind not in (Kind.SCRIPT, Kind.MODULE):
        return
    # Several may run one after the other; each reports for itself.
    directory = Path(variables[environment.RANK_DIRECTORY]) / str(os.getpid())
    directory.mkdir(exist_ok=True)
    variables[environment.RANK_DIRECTORY] = str(directory)
    variables[environment.HOOKED] = "1"
    python = (sys.executable, *command.interpreter[1:])
    os.execv(sys.executable, worker_command.words(command, python, variables.get("LOCAL_RANK", "0")))
