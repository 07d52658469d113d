"""Handles SIGTERM, SIGINT and SIGHUP sent to the launcher, and wakes it when a child ends."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Records the first terminating signal, which interrupts ``sleep``, as does the end of a child."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._count = 0
        self._wake, write_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in _ENDING:
            signal.signal(number, self._note)
        # Without a Python handler, nothing would be written to the wake-up pipe.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def sleep(self, seconds: float) -> None:
        """Sleep at most this long; a signal or the end of a child wakes it."""
        if select.select([self._wake], [], [], seconds)[0]:
            os.read(self._wake, 4096)

    def is_urgent(self) -> bool:
        """Whether a second terminating signal came: its sender does not want to wait."""
        return self._count > 1

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._count += 1
        self.received = self.received or number
