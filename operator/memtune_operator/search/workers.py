"""Who runs a trial: a name for this process, and whether the process that has a name is gone."""

from __future__ import annotations

import os
import socket
from uuid import uuid4

# A container that was started again has the host name and the process id of the one before.
_START = uuid4().hex


def this_worker() -> str:
    """The name of this process: its host, its id, and what no other process with that id has."""
    return f"{socket.gethostname()}/{os.getpid()}/{_START}"


def is_gone(worker: str) -> bool:
    """Whether a process has ended. Of one on another host nobody can tell: there Optuna's heartbeat does."""
    host, _, rest = worker.partition("/")
    process, _, start = rest.partition("/")
    if host != socket.gethostname() or not process.isdecimal():
        return False
    number = int(process)
    if number == os.getpid():
        return start != _START
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
