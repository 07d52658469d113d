"""Where a rank stands, whatever it waits for: the stacks of its threads, printed when the launcher asks by a signal."""

from __future__ import annotations

import faulthandler
import signal

# Scripts and schedulers use SIGUSR1 and SIGUSR2, and a SIGQUIT that nobody handles leaves a core dump. Only
# where there is no other does it have to be one of them.
SIGNAL: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
_STDERR = 2  # whatever the script makes of sys.stderr


def show_when_asked() -> None:
    """From here on the signal prints all stacks, even while a library holds the interpreter."""
    faulthandler.register(SIGNAL, file=_STDERR)


def show() -> None:
    """Print them now."""
    faulthandler.dump_traceback(_STDERR)
