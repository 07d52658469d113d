"""Ends whole trees of processes: a worker's children, and theirs, wherever they put themselves.

Where there is no Linux, nothing is known of them, and a child may outlive its parent.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies, so that none is lost sight of."""
    _prctl()(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dying_with_parent() -> Callable[[], None]:
    """What a new child calls before anything else, so that it does not outlive this process."""
    # Loaded here: between fork and exec nothing may be imported.
    prctl = _prctl()
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return prepare


def descendants(of: int) -> list[int]:
    """All processes below this one that still run, children first."""
    children: dict[int, list[int]] = {}
    for each in _PROC.iterdir() if _PROC.exists() else ():
        if each.name.isdecimal() and (parent := _parent_of_living(each)) is not None:
            children.setdefault(parent, []).append(int(each.name))
    found = list(children.get(of, []))
    for each_pid in found:  # the list grows while it is read
        found += children.get(each_pid, [])
    return found


def send(signal_number: int, pid: int) -> None:
    """Send a signal to a process, if it is still there and of this user: a program may have taken another one."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal_number)


def send_to_group(signal_number: int, leader: int) -> None:
    """Send a signal to a process and all that it started and that did not leave its group."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal_number)


def catches(signal_number: int, pid: int) -> bool:
    """Whether a process handles a signal itself; one that does not may die of it."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal_number - 1) & 1)


def _prctl() -> Callable[..., object]:
    return getattr(ctypes.CDLL(None), "prctl", lambda *_: None)


def _parent_of_living(process: Path) -> int | None:
    """The parent of a process, None if it has ended and only waits to be asked for its exit code."""
    try:
        stat = (process / "stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything; what follows the last one does not.
    state, parent = stat.rpartition(b")")[2].split()[:2]
    return None if state in (b"Z", b"X") else int(parent)
