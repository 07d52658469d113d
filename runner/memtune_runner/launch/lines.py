"""Cuts a rank's output into lines. Pure; works on bytes, so that undecodable output passes through."""

from __future__ import annotations

import re
from collections import deque

LONGEST_LINE_BYTES = 16_384
_TAIL_LINES = 200
# Python writes a traceback at the cursor, which may be behind a progress bar.
_TRACEBACK = re.compile(rb"(?<=.)(?=Traceback \(most recent call last\):)")
_TAIL_LINE_BYTES = 2_048


class LineCutter:
    """Collects one output stream of a rank until lines are complete.

    A carriage return restarts the line, as on a terminal: only the newest state of a progress bar is kept. ``pending``
    returns it when the bar stops or has waited long enough.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are now complete, without their line ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        cut = [piece for line in lines for part in _TRACEBACK.split(_shown(line)) for piece in _pieces(part)]
        while len(self._rest) > LONGEST_LINE_BYTES:
            self._rest, ready = self._shortened()
            cut += ready
        return cut

    def pending(self) -> bytes | None:
        """Return the text since the last complete line, and count it as printed."""
        if self._rest.endswith(b"\r") and not self._rest.strip(b"\r"):
            return None
        # The text may end in the first half of \r\n; if kept, it starts the next line, which is harmless.
        rest, self._rest = self._rest, b""
        return _shown(rest) or None

    def _shortened(self) -> tuple[bytes, list[bytes]]:
        start = self._rest.rstrip(b"\r").rfind(b"\r") + 1
        if start:
            return self._rest[start:], []
        return self._rest[LONGEST_LINE_BYTES:], [self._rest[:LONGEST_LINE_BYTES]]


def _shown(line: bytes) -> bytes:
    """Return what a terminal would show: the text behind the last carriage return that was written over."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _pieces(line: bytes) -> list[bytes]:
    return [line[start : start + LONGEST_LINE_BYTES] for start in range(0, len(line), LONGEST_LINE_BYTES)] or [b""]


class Tail:
    """The last lines of a rank, both streams in order of arrival."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def add(self, line: bytes) -> None:
        """Append a line."""
        self._lines.append(line[:_TAIL_LINE_BYTES])

    def text(self) -> str:
        """Return the lines as text; invalid UTF-8 is replaced."""
        return b"\n".join(self._lines).decode("utf-8", "replace")
