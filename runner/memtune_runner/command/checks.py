"""Checks a command before anything is started."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from memtune_runner.command import accelerate_options
from memtune_runner.command.command import Command, Kind
from memtune_runner.rank.bad_input import BadCommandError

_SHEBANG = re.compile(rb"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S*python[\d.]*)(?:\s|$)")


def runnable(command: Command) -> None:
    """Raise BadCommandError if a file or program in the command does not exist."""
    if command.kind is Kind.SCRIPT and not Path(command.target).exists():
        where = "" if Path(command.target).is_absolute() else f" in {Path.cwd()}"
        raise BadCommandError(f"there is no script {command.target}{where}; correct the command, or add it")
    program = command.target if command.kind is Kind.PROGRAM else python_of(command)[0]
    if shutil.which(program) is None:
        raise BadCommandError(f"there is no program {program} to run; correct the command, or add it")
    accelerate_options.check(command.accelerate_options)


def python_of(command: Command) -> tuple[str, ...]:
    """Return the Python that runs the script, with its options: the one in the command line, or the launcher's."""
    return command.interpreter or (_python_behind(command.launcher) or sys.executable,)


def of_console_script(command: Command) -> Command:
    """Return the script behind a program such as litgpt, which a package installs for its Python; else the command."""
    path = shutil.which(command.target) if command.kind is Kind.PROGRAM else None
    python = path and _python_behind(path)
    return replace(command, kind=Kind.SCRIPT, target=path, interpreter=(python,)) if path and python else command


def _python_behind(program: str) -> str | None:
    """Return the Python that a program such as torchrun is installed for; it may differ from the runner's."""
    found = shutil.which(program)
    if found is None:
        return None
    with Path(found).open("rb") as script:
        match = _SHEBANG.match(script.readline(512))
    python = match and match[1].decode(errors="replace")
    return python if python and shutil.which(python) else None
