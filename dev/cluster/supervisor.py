"""Starts parts, notices a dead one and writes down what it saw. Used twice: on the machine and inside every node.

Nothing is restarted unasked: a part that dies in a test cluster is a finding, not something to hide. SIGHUP asks: every
dead part is started anew. The kernel kills every part when its supervisor dies, so a cluster is never left without one,
and to kill the supervisor is to end it all.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dev.cluster.layout import CHECKOUT
from dev.cluster.shell import BrokenStateError, ClusterError, read_whole, tail


@dataclass(frozen=True)
class Part:
    name: str
    argv: list[str]
    log: Path
    ready: Callable[[], bool] = lambda: True


class Supervisor:
    def __init__(self, status: Path, *, ready_seconds: float = 90) -> None:
        self._status = status
        self._ready_seconds = ready_seconds
        self._parts: dict[str, dict[str, object]] = {}
        # A Popen object that is collected waits for its process itself, and its end would be missed: hold on to it.
        self._running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self._started = False
        self._asked_anew = False
        self._is_written = True

    def run(self, parts: list[Part]) -> NoReturn:
        """Start the parts one after the other, each when the one before is ready; then watch until killed."""
        signal.signal(signal.SIGHUP, self._ask_anew)
        self._start_missing(parts)
        while True:
            self._reap()
            if not self._is_written:
                self._write()
            if self._asked_anew:
                self._asked_anew = False
                self._start_missing(parts)
            time.sleep(0.1)

    def _ask_anew(self, *_: object) -> None:
        self._asked_anew = True

    def _start_missing(self, parts: list[Part]) -> None:
        self._started = False
        self._write()
        running = {name for name, _ in self._running.values()}
        self._started = all(self._start(part) for part in parts if part.name not in running)
        self._write()

    def _start(self, part: Part) -> bool:
        part.log.parent.mkdir(parents=True, exist_ok=True)
        with part.log.open("a") as out:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *part.argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running[process.pid] = (part.name, process)
        self._parts[part.name] = {"pid": process.pid, "dead": None}
        self._write()
        deadline = time.monotonic() + self._ready_seconds
        while process.pid in self._running and not part.ready():
            if time.monotonic() > deadline:
                # Or it would be there still, beside the one that is started anew.
                process.kill()
                process.wait()
                self._bury(process.pid, f"was not ready after {self._ready_seconds:.0f} s")
                return False
            time.sleep(0.1)
            self._reap()
        return process.pid in self._running

    def _reap(self) -> None:
        # Inside a node this is process 1: containers' orphans end up here as well and must be waited for.
        while True:
            try:
                pid, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:
                self._bury(pid, f"ended with {_describe(os.waitstatus_to_exitcode(code))}")

    def _bury(self, pid: int, how: str) -> None:
        name, _ = self._running.pop(pid)
        self._parts[name]["dead"] = how
        self._write()

    def _write(self) -> None:
        content = {"boot": boot_id(), "pid": os.getpid(), "started": self._started, "parts": self._parts}
        fresh = self._status.with_suffix(".new")
        # A full disk is no reason to end every part; it is written as soon as there is room.
        self._is_written = False
        with suppress(OSError):
            fresh.write_text(json.dumps(content, indent=1))
            fresh.rename(self._status)
            self._is_written = True


def supervise(parts: list[Part], status: Path, lock: Path) -> NoReturn:
    """Be the only supervisor of these parts; who holds the lock is alive."""
    fresh = lock.with_suffix(".new")
    with fresh.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(str(os.getpid()))
        held.flush()
        # Nobody finds it before it is held and says by whom.
        fresh.rename(lock)
        Supervisor(status).run(parts)


def leave_running(module: str, *words: str, log: Path, lock: Path) -> None:
    """Start a supervisor that outlives the command that starts it, and wait until it has its lock."""
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while not lock.is_file():
        if (code := process.poll()) is not None:
            raise ClusterError(
                f"the supervisor {module} ended with {_describe(code)}; the end of its log:\n{tail(log)}"
            )
        time.sleep(0.05)


def _describe(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and that nobody has waited for yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def part_pids(status: Path) -> dict[str, int]:
    """The processes of the parts that are not dead; none of before the machine was started anew."""
    with suppress(BrokenStateError):
        # Parts that nobody can name any more die with their supervisor all the same.
        if status.is_file() and read_whole(status).get("boot") == boot_id():
            return {name: int(str(part["pid"])) for name, part in read_status(status).items() if not part["dead"]}
    return {}


def read_status(status: Path) -> dict[str, dict[str, object]]:
    """The parts that a supervisor has started, by name."""
    if not status.is_file():
        return {}
    parts: dict[str, dict[str, object]] = read_whole(status)["parts"]
    return parts


def dead_parts(status: Path, logs: Path) -> list[str]:
    """One paragraph for each dead part: which, how it ended, and the end of its log, as the machine sees that."""
    return [
        f"{name} {part['dead']}; the end of its log:\n{tail(logs / f'{name}.log')}"
        for name, part in read_status(status).items()
        if part["dead"]
    ]
