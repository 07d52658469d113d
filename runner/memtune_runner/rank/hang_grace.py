"""Extends hang timeouts while another rank evaluates or saves, through the age of files on the node.

The launchers pass the requests on between nodes.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path


class HangGrace:
    """The ranks' requests for extended hang timeouts. Without a directory, as for a single rank, it does nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._here = directory and directory / "hang-grace-here"
        self._elsewhere = directory and directory / "hang-grace-elsewhere"
        self._seen: float | None = None

    def ask(self) -> None:
        """Ask the ranks of all nodes for a longer timeout."""
        _touch(self._here)

    def ask_for_others(self) -> None:
        """Pass on the request of a rank on another node."""
        _touch(self._elsewhere)

    def has_request(self) -> bool:
        """Whether a rank of this node has asked since the last call."""
        before, self._seen = self._seen, _touched(self._here)
        return self._seen != before

    def is_asked(self, seconds: float) -> bool:
        """Whether a rank of any node asked within the last ``seconds``."""
        asked = (_touched(each) for each in (self._here, self._elsewhere))
        return any(each is not None and time.time() - each < seconds for each in asked)


def _touch(path: Path | None) -> None:
    if path is not None:
        with suppress(OSError):  # a full disk may cost the extension, never the training
            path.touch()


def _touched(path: Path | None) -> float | None:
    try:
        return path.stat().st_mtime if path is not None else None
    except OSError:
        return None
