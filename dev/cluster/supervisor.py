"""The supervisor: starts parts, detects dead ones and records their status; runs on the machine and inside every node.

Dead parts are not restarted automatically: in a test cluster they are a finding. SIGHUP restarts them. The kernel kills
all parts when their supervisor dies, so killing the supervisor ends everything.
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
from dev.cluster.shell import GO_SETTINGS, BrokenStateError, ClusterError, read_whole, tail


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
        # Keep the Popen object: when garbage-collected it reaps its process, and the end would be missed.
        self._running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self._started = False
        self._asked_anew = False
        self._is_written = True

    def run(self, parts: list[Part]) -> NoReturn:
        """Start the parts in order, each when the one before is ready; then watch until killed."""
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
                env={**os.environ, **GO_SETTINGS},
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
                # Otherwise it would run beside its replacement.
                process.kill()
                process.wait()
                self._bury(process.pid, f"was not ready after {self._ready_seconds:.0f} s")
                return False
            time.sleep(0.1)
            self._reap()
        return process.pid in self._running

    def _reap(self) -> None:
        # Inside a node this is process 1 and must reap orphans of containers.
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
        # A full disk must not end the parts; the status is written once there is space.
        self._is_written = False
        with suppress(OSError):
            fresh.write_text(json.dumps(content, indent=1))
            fresh.rename(self._status)
            self._is_written = True


def supervise(parts: list[Part], status: Path, lock: Path) -> NoReturn:
    """Become the only supervisor of these parts; the lock shows that it is alive."""
    fresh = lock.with_suffix(".new")
    with fresh.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(str(os.getpid()))
        held.flush()
        # It appears only once it is locked and names its holder.
        fresh.rename(lock)
        Supervisor(status).run(parts)


def leave_running(module: str, *words: str, log: Path, lock: Path) -> None:
    """Start a supervisor that outlives this command, and wait until it has its lock."""
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
    """Whether the process is running; a zombie is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def part_pids(status: Path) -> dict[str, int]:
    """The process ids of live parts; none from before a reboot."""
    with suppress(BrokenStateError):
        # Parts that cannot be named anymore still die with their supervisor.
        if status.is_file() and read_whole(status).get("boot") == boot_id():
            return {name: int(str(part["pid"])) for name, part in read_status(status).items() if not part["dead"]}
    return {}


def read_status(status: Path) -> dict[str, dict[str, object]]:
    """The parts of a supervisor, by name."""
    if not status.is_file():
        return {}
    parts: dict[str, dict[str, object]] = read_whole(status)["parts"]
    return parts


def dead_parts(status: Path, logs: Path) -> list[str]:
    """A paragraph for each dead part: its name, how it ended, and the path and tail of its log."""
    return [
        f"{name} {part['dead']}; the end of its log:\n{tail(logs / f'{name}.log')}"
        for name, part in read_status(status).items()
        if part["dead"]
    ]
