"""Cuts what a rank prints into lines, whatever it is. Pure; works on bytes, so that nothing can be undecodable."""

from __future__ import annotations

import re
from collections import deque

LONGEST_LINE_BYTES = 16_384
_TAIL_LINES = 200
# Python writes it where the cursor stands, which may be behind a progress bar.
_TRACEBACK = re.compile(rb"(?<=.)(?=Traceback \(most recent call last\):)")
_TAIL_LINE_BYTES = 2_048


class LineCutter:
    """Collects what one stream of a rank prints until lines are complete.

    A carriage return starts a line anew, as on a terminal: of a progress bar only the newest state is kept, and
    ``pending`` gives it out when the bar rests or when somebody has waited long enough.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        cut = [piece for line in lines for part in _TRACEBACK.split(_shown(line)) for piece in _pieces(part)]
        while len(self._rest) > LONGEST_LINE_BYTES:
            self._rest, ready = self._shortened()
            cut += ready
        return cut

    def pending(self) -> bytes | None:
        """What was printed since the last complete line; from now on it counts as given out."""
        if self._rest.endswith(b"\r") and not self._rest.strip(b"\r"):
            return None
        # The end may be the first half of \r\n; kept, it starts the next line anew, which costs nothing.
        rest, self._rest = self._rest, b""
        return _shown(rest) or None

    def _shortened(self) -> tuple[bytes, list[bytes]]:
        start = self._rest.rstrip(b"\r").rfind(b"\r") + 1
        if start:
            return self._rest[start:], []
        return self._rest[LONGEST_LINE_BYTES:], [self._rest[:LONGEST_LINE_BYTES]]


def _shown(line: bytes) -> bytes:
    """What a terminal would show of a line: what stands after the last carriage return that was written over."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _pieces(line: bytes) -> list[bytes]:
    return [line[start : start + LONGEST_LINE_BYTES] for start in range(0, len(line), LONGEST_LINE_BYTES)] or [b""]


class Tail:
    """The last lines of a rank, both streams in the order in which they came."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def add(self, line: bytes) -> None:
        """Take one more line."""
        self._lines.append(line[:_TAIL_LINE_BYTES])

    def text(self) -> str:
        """The lines as text; what is not UTF-8 is replaced."""
        return b"\n".join(self._lines).decode("utf-8", "replace")
