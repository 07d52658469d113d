"""The one way a subcommand says that its input is bad."""

from __future__ import annotations


class InputError(Exception):
    """Bad input: each line says what is wrong, where, and what to do."""
