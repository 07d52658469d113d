"""The one way a subcommand says that its input is bad, and the code with which it ends when it is interrupted."""

from __future__ import annotations

INTERRUPTED = 130


def installing(extras: str) -> str:
    """What installs that which only some subcommands need."""
    return f"pip install '.[{extras}]' in MemTune's checkout"


class InputError(Exception):
    """Bad input: each line says what is wrong, where, and what to do."""
