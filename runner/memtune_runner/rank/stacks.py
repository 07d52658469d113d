"""Prints the stacks of a rank's threads when the launcher sends a signal, even while the rank is blocked.

A hang is shown in this way before any rank is ended, because a rank that ends takes others along by its connections.
"""

from __future__ import annotations

import faulthandler
import signal

# Scripts and schedulers use SIGUSR1 and SIGUSR2, and an unhandled SIGQUIT dumps core; so use SIGUSR2 only where there
# is no real-time signal.
SIGNAL: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
_STDERR = 2  # regardless of what the script does to sys.stderr


def print_on_signal() -> None:
    """Install the handler. It prints all stacks even while a library holds the GIL."""
    faulthandler.register(SIGNAL, file=_STDERR)


def show() -> None:
    """Print all stacks now."""
    faulthandler.dump_traceback(_STDERR)
