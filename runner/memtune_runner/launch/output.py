"""Forwards the ranks' output, each line prefixed with its rank, and keeps the tail for the report."""

from __future__ import annotations

import os
import selectors
import threading
import time
from dataclasses import dataclass, field
from typing import BinaryIO

from memtune_runner.launch.lines import LineCutter, Tail

_CHUNK_BYTES = 65_536
# An unfinished line is forwarded after this long: it may be a prompt or a progress bar.
_PATIENCE_SECONDS = 1.0


@dataclass
class _Stream:
    """One output stream of one rank: its target, and since when an unfinished line waits."""

    rank: int
    target: BinaryIO
    cutter: LineCutter = field(default_factory=LineCutter)
    waiting_since: float | None = None


class Output:
    """A thread that reads the streams of all ranks and ends when the last one is closed."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._tails: dict[int, Tail] = {}
        self._thread = threading.Thread(target=self._pump, name="output", daemon=True)

    def add(self, rank: int, source: int, target: BinaryIO) -> None:
        """Read file descriptor ``source`` of this rank; call it before ``start``."""
        os.set_blocking(source, False)
        self._tails.setdefault(rank, Tail())
        self._selector.register(source, selectors.EVENT_READ, _Stream(rank, target))

    def start(self) -> None:
        """Start forwarding."""
        self._thread.start()

    def drain(self, seconds: float) -> None:
        """Wait until all output is forwarded, at most this long."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def tail(self, rank: int) -> str:
        """Return the last lines of this rank."""
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
            # The reader of our output has gone. Keep emptying the ranks' pipes, so that the ranks do not die of it.
            pass
