"""Passes on what the ranks print, each line with its rank in front, and keeps the end of it."""

from __future__ import annotations

import os
import selectors
import threading
import time
from dataclasses import dataclass, field
from typing import BinaryIO

from memtune_runner.launch.lines import LineCutter, Tail

_CHUNK_BYTES = 65_536
# A line that is not ended for this long is passed on as it is: somebody may be waiting for it.
_PATIENCE_SECONDS = 1.0


@dataclass
class _Stream:
    """One stream of one rank, where it goes to, and since when part of a line waits."""

    rank: int
    target: BinaryIO
    cutter: LineCutter = field(default_factory=LineCutter)
    waiting_since: float | None = None


class Output:
    """One thread that reads all ranks' streams. It ends by itself when the last of them is closed."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._tails: dict[int, Tail] = {}
        self._thread = threading.Thread(target=self._pump, name="output", daemon=True)

    def add(self, rank: int, source: int, target: BinaryIO) -> None:
        """Read the file descriptor ``source`` of this rank; before ``start``."""
        os.set_blocking(source, False)
        self._tails.setdefault(rank, Tail())
        self._selector.register(source, selectors.EVENT_READ, _Stream(rank, target))

    def start(self) -> None:
        """Begin to pass on."""
        self._thread.start()

    def drain(self, seconds: float) -> None:
        """Wait until everything that was printed is passed on, but no longer than this."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def tail(self, rank: int) -> str:
        """The last lines of this rank."""
        return self._tails[rank].text()

    def _pump(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select(_PATIENCE_SECONDS / 4):
                self._read(key.fd, key.data)
            for key in list(self._selector.get_map().values()):
                self._pass_on_what_waits(key.data)

    def _read(self, source: int, stream: _Stream) -> None:
        try:
            data = os.read(source, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if data:
            self._write(stream, stream.cutter.feed(data))
            stream.waiting_since = stream.waiting_since or time.monotonic()
        else:
            self._selector.unregister(source)
            os.close(source)
            self._flush(stream)

    def _pass_on_what_waits(self, stream: _Stream) -> None:
        since = stream.waiting_since
        if since is not None and time.monotonic() - since >= _PATIENCE_SECONDS:
            self._flush(stream)

    def _flush(self, stream: _Stream) -> None:
        stream.waiting_since = None
        pending = stream.cutter.pending()
        if pending is not None:
            self._write(stream, [pending])

    def _write(self, stream: _Stream, lines: list[bytes]) -> None:
        for line in lines:
            self._tails[stream.rank].add(line)
        if not lines:
            return
        stream.waiting_since = None
        prefix = b"[rank %d] " % stream.rank
        try:
            stream.target.write(b"".join(prefix + line + b"\n" for line in lines))
            stream.target.flush()
        except OSError:
            # Whoever read our output has gone. The ranks must not die of it, so their pipes are still emptied.
            pass
