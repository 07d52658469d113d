"""How a rank that evaluates or saves has those that wait for it be patient: by the age of a file of their node.

The launchers of several nodes tell each other of it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path


class Patience:
    """What the ranks of one node ask of each other. Without a directory nobody is asked: a rank may be alone."""

    def __init__(self, directory: Path | None) -> None:
        self._here = directory and directory / "patience-here"
        self._elsewhere = directory and directory / "patience-elsewhere"
        self._seen: float | None = None

    def ask(self) -> None:
        """Ask the ranks of all nodes to wait a while longer."""
        _touch(self._here)

    def ask_for_others(self) -> None:
        """Pass on that a rank of another node has asked."""
        _touch(self._elsewhere)

    def was_asked(self) -> bool:
        """Whether a rank of this node has asked since this was last called."""
        before, self._seen = self._seen, _touched(self._here)
        return self._seen != before

    def is_asked(self, seconds: float) -> bool:
        """Whether a rank of any node has asked within the last seconds."""
        asked = (_touched(each) for each in (self._here, self._elsewhere))
        return any(each is not None and time.time() - each < seconds for each in asked)


def _touch(path: Path | None) -> None:
    if path is not None:
        with suppress(OSError):  # a full disk costs patience, never the training
            path.touch()


def _touched(path: Path | None) -> float | None:
    try:
        return path.stat().st_mtime if path is not None else None
    except OSError:
        return None
