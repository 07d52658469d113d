"""InputError, with which a subcommand reports bad input, and the exit code of an interruption."""

from __future__ import annotations

INTERRUPTED = 130


def installing(extras: str) -> str:
    """The pip command that installs an optional extra."""
    return f"pip install '.[{extras}]' in MemTune's checkout"


class InputError(Exception):
    """Bad input. Each line says what is wrong, where, and what to do."""
