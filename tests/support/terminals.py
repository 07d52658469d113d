"""Streams that claim to be a terminal."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """A terminal that keeps its output."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True
