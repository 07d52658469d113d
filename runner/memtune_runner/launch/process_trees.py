"""Ends whole process trees: a worker's children and their children, in any session or process group.

On systems other than Linux descendants are unknown, and a child may outlive its parent.
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
    """Make this process the subreaper of its descendants, so that orphans stay visible."""
    _prctl()(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dying_with_parent() -> Callable[[], None]:
    """Return a ``preexec_fn`` that ties a child's life to this process."""
    # Load it here: nothing may be imported between fork and exec.
    prctl = _prctl()
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return prepare


def descendants(of: int) -> list[int]:
    """Return all running descendants, children first."""
    children: dict[int, list[int]] = {}
    for each in _PROC.iterdir() if _PROC.exists() else ():
        if each.name.isdecimal() and (parent := _parent_of_living(each)) is not None:
            children.setdefault(parent, []).append(int(each.name))
    found = list(children.get(of, []))
    for each_pid in found:  # the list grows during the loop
        found += children.get(each_pid, [])
    return found


def send(signal_number: int, pid: int) -> None:
    """Signal a process if it still exists and belongs to this user; a program may have switched users."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal_number)


def send_to_group(signal_number: int, leader: int) -> None:
    """Signal a process and everything that it started in its process group."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal_number)


def catches(signal_number: int, pid: int) -> bool:
    """Whether a process handles a signal; otherwise the signal may kill it."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal_number - 1) & 1)


def _prctl() -> Callable[..., object]:
    return getattr(ctypes.CDLL(None), "prctl", lambda *_: None)


def _parent_of_living(process: Path) -> int | None:
    """Return the parent of a process; None if the process is a zombie."""
    try:
        stat = (process / "stat").read_bytes()
    except OSError:
        return None
    # The process name in parentheses may contain anything; the text behind the last parenthesis may not.
    state, parent = stat.rpartition(b")")[2].split()[:2]
    return None if state in (b"Z", b"X") else int(parent)
