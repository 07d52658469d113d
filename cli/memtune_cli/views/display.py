"""What stays and what changes: lines that are told once, and below them, on a terminal, a page that is drawn anew."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from memtune_cli.views.screen import Screen

_UP, _CLEAR_BELOW = "\x1b[{}A", "\r\x1b[J"
# A line that is wrapped by the terminal would be two of those that are erased later.
_CUT_LINES, _WRAP_LINES = "\x1b[?7l", "\x1b[?7h"


class Display:
    """One stream. Where it is no terminal, only the told lines are written."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self.screen = Screen.of(self._stream)
        self.is_live = self._stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._shown: list[str] = []

    def tell(self, line: str) -> None:
        """Say something once, with the time of day."""
        self._draw([f"{time.strftime('%H:%M:%S')}  {line}"], self._shown)

    def show(self, lines: Sequence[str]) -> None:
        """The page as it is now, in place of the one before; as much of it as the terminal has lines."""
        if self.is_live:
            self.screen = Screen.of(self._stream)  # the window may have another size by now
            height = shutil.get_terminal_size((100, 40)).lines - 1
            self._draw([], list(lines)[:height])

    def end(self, lines: Sequence[str] = ()) -> None:
        """Nothing changes any more: what is left is these lines, for good."""
        self._draw(lines, [])

    def _draw(self, told: Sequence[str], shown: list[str]) -> None:
        erased = _UP.format(len(self._shown)) + _CLEAR_BELOW if self._shown else ""
        above, page = (self.screen.plain("".join(f"{line}\n" for line in lines)) for lines in (told, shown))
        try:
            self._stream.write(erased + above + (f"{_CUT_LINES}{page}{_WRAP_LINES}" if page else ""))
            self._stream.flush()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # The terminal was closed. Nobody reads on, and whoever is told of that has to end what runs.
            self.is_live = False
        self._shown = shown
