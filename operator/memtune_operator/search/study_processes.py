"""Worker identity of trials: names this process and detects that another one is gone."""

from __future__ import annotations

import os
import socket
from uuid import uuid4

# A restarted container has the same host name and process id, so a random token distinguishes the processes.
_START = uuid4().hex


def this_worker() -> str:
    """The name of this process: host, process id and a random token."""
    return f"{socket.gethostname()}/{os.getpid()}/{_START}"


def is_gone(worker: str) -> bool:
    """Whether a process has ended. Unknown for other hosts, where Optuna's heartbeat detects it."""
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
