"""Terminal display: permanent lines, and below them a page that is redrawn in place."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from memtune_cli.views.screen import Screen

_UP, _CLEAR_BELOW = "\x1b[{}A", "\r\x1b[J"
# A wrapped line would count as two when the page is erased.
_CUT_LINES, _WRAP_LINES = "\x1b[?7l", "\x1b[?7h"


class Display:
    """The display on one stream. Without a terminal, only permanent lines are written.

    ``unread`` is called once nobody reads the stream any more; without it, that is the usual BrokenPipeError.
    """

    def __init__(self, stream: TextIO | None = None, unread: Callable[[], None] | None = None) -> None:
        self._stream, self._unread = stream or sys.stdout, unread
        self.screen = Screen.of(self._stream)
        self.is_live = self._stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._shown: list[str] = []

    def tell(self, line: str) -> None:
        """Print a permanent line with the time of day."""
        self._draw([f"{time.strftime('%H:%M:%S')}  {line}"], self._shown)

    def show(self, lines: Sequence[str]) -> None:
        """Replace the page, cut to the height of the terminal."""
        if self.is_live:
            self.screen = Screen.of(self._stream)  # the window may have been resized
            height = shutil.get_terminal_size((100, 40)).lines - 1
            self._draw([], list(lines)[:height])

    def end(self, lines: Sequence[str] = ()) -> None:
        """Replace the page by permanent lines."""
        self._draw(lines, [])

    def _draw(self, lines: Sequence[str], shown: list[str]) -> None:
        erased = _UP.format(len(self._shown)) + _CLEAR_BELOW if self._shown else ""
        above, page = (self.screen.plain("".join(f"{line}\n" for line in part)) for part in (lines, shown))
        try:
            self._stream.write(erased + above + (f"{_CUT_LINES}{page}{_WRAP_LINES}" if page else ""))
            self._stream.flush()
        except BrokenPipeError:
            if self._unread is None:
                raise
            # Text still in the buffer, and all that follows, is discarded.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._unread()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # The terminal was closed: ignore it here, since the signal's handler has to end the runs.
            self.is_live = False
        self._shown = shown
