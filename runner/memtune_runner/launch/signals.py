"""The signals by which the launcher itself is asked to end, and what wakes it in between."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Notes the first ending signal. ``sleep`` is cut short by it, and by the end of a child."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._count = 0
        self._wake, write_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in _ENDING:
            signal.signal(number, self._note)
        # Without a handler of Python's, nothing would be written to the pipe.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def sleep(self, seconds: float) -> None:
        """Sleep until something happens, at most this long."""
        if select.select([self._wake], [], [], seconds)[0]:
            os.read(self._wake, 4096)

    def is_urgent(self) -> bool:
        """Whether somebody asked more than once, and does not want to wait."""
        return self._count > 1

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._count += 1
        self.received = self.received or number
