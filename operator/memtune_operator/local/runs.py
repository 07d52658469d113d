"""Local runs as processes: each has a directory with its environment, its output and how it ended."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from memtune.api.container import substitute
from memtune.controller.observation import PodObservation
from memtune.wire import environment
from memtune.wire.report import Report, read_report
from memtune.wire.report_checks import ReportError
from memtune.wire.trace_message import LONGEST_BYTES

_log = logging.getLogger("memtune")
GRACE_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.5


class LocalRun:
    """One run: its directory, and its process while this program is the parent."""

    def __init__(self, directory: Path, ended: Callable[[], None]) -> None:
        self.directory = directory
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._waiter: asyncio.Task[None] | None = None
        # The process and its start time, if this program started it.
        self._known: tuple[int, str] | None = None
        # How it ended, if this program observed it.
        self._end: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.directory.name

    @property
    def uid(self) -> str:
        """A unique id: names are not reused."""
        return self.name

    async def start(self, command: list[str], variables: Mapping[str, str], workdir: Path) -> None:
        """Start the command in a session of its own, so that all its processes can be ended together."""
        # A failed or unrecorded start may have left one.
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        whole = {**os.environ, **expanded(with_files(variables, self.directory))}
        began_at = time.time()
        # Written first, so that the process is searched for even if this program dies before it records the id.
        self._write("process.json", {"at": began_at})
        with (self.directory / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(substitute(word, whole) for word in command),
                env=whole,
                cwd=workdir,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        pid, born = self._known = self._process.pid, _start_time(self._process.pid)
        # If this cannot be written, a later call searches for the process to end it.
        self._keep("process.json", {"pid": pid, "born": born, "at": began_at})
        self._waiter = asyncio.create_task(self._wait(self._process))

    def observe(self) -> PodObservation | None:
        """Observe the run as one pod; None if its process is gone and its end was not observed."""
        process, ended = self._read("process.json"), self._end or self._read("ended.json")
        if not ended and self._process is None:
            return None
        report = self._report()
        return PodObservation(
            index=0,
            name=self.name,
            uid=self.uid,
            phase="Running" if not ended else "Failed" if ended["code"] else "Succeeded",
            deleting=self.is_deleted,
            exit_code=ended.get("code"),
            started_at_seconds=process.get("at"),
            finished_at_seconds=ended.get("at"),
            report=report,
            failure_order=report.failure_order if report else None,
            last_words="" if report else self._last_words(),
        )

    async def log(self, follow: bool) -> AsyncIterator[str]:
        """The lines that the run printed; with ``follow``, also those until it ends."""
        line = ""
        with (self.directory / "log").open(errors="replace") as log:
            while True:
                goes_on = follow and self._goes_on()
                for part in log:
                    line += part
                    if line.endswith("\n"):
                        yield line.removesuffix("\n")
                        line = ""
                if not goes_on:
                    break
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        if line:
            yield line

    def _goes_on(self) -> bool:
        pid, born = self._started()
        return not self._read("ended.json") and bool(born) and _start_time(pid) == born

    async def stop(self, grace_seconds: float | None) -> None:
        """End the whole session, with SIGTERM and then SIGKILL, also one started by an earlier call."""
        pid, born = self._started()
        if not born or _start_time(pid) != born:
            return
        _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + (GRACE_SECONDS if grace_seconds is None else grace_seconds)
        while _start_time(pid) == born and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        _signal(pid, signal.SIGKILL)
        if self._waiter:
            await self._waiter

    def adopt_report(self) -> bool:
        """Take the end of an unobserved run from its report; return whether there was one."""
        report = self._report()
        if report is None:
            return False
        written_at = (self.directory / "message").stat().st_mtime
        self._write("ended.json", {"code": report.exit_code, "at": written_at})
        return True

    @property
    def is_deleted(self) -> bool:
        """Whether the run was deleted; its log stays."""
        return (self.directory / "deleted").exists()

    async def delete(self, grace_seconds: float | None) -> None:
        """End the run and mark it as deleted."""
        await self.stop(grace_seconds)
        self._write("deleted", {})

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        # As in a container, child processes end with the main process.
        _signal(process.pid, signal.SIGKILL)
        # 128 + signal, as shells and Kubernetes report it.
        self._end = {"code": 128 - code if code < 0 else code, "at": time.time()}
        # This call knows the end anyway; a later one reads the report, or finds the run gone.
        self._keep("ended.json", self._end)
        self._ended()

    def _started(self) -> tuple[int, str]:
        """The process and its start time, found by its environment if an earlier call did not record it."""
        if self._known:
            return self._known
        process = self._read("process.json")
        if not process or "pid" in process:
            return process.get("pid", 0), process.get("born", "")
        variable = os.fsencode(f"{environment.REPORT_PATH}={self.directory / 'report.json'}")
        found = [int(each.name) for each in Path("/proc").glob("[0-9]*") if variable in _variables(each)]
        # Its children have the same environment and started later.
        return min(
            ((pid, _start_time(pid)) for pid in found), key=lambda each: int(each[1] or sys.maxsize), default=(0, "")
        )

    def _report(self) -> Report | None:
        try:
            return read_report((self.directory / "message").read_bytes())
        except (OSError, ReportError):
            return None

    def _last_words(self) -> str:
        try:
            return (self.directory / "message").read_text(errors="replace")[:LONGEST_BYTES]
        except OSError:
            return ""

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / name).read_text())
        except (OSError, ValueError):
            return {}
        return found

    def _keep(self, name: str, value: dict[str, Any]) -> None:
        """Write a file that the run can do without: the disk may be full."""
        try:
            self._write(name, value)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self.directory / name, error.strerror)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        write_whole(self.directory / name, json.dumps(value))


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


def with_files(variables: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The variables, with the paths of the run's files in ``directory``."""
    config = {environment.DEEPSPEED_CONFIG: str(directory / "deepspeed.json")}
    return {
        **variables,
        environment.REPORT_PATH: str(directory / "report.json"),
        environment.TERMINATION_MESSAGE_PATH: str(directory / "message"),
        **(config if variables.get(environment.DEEPSPEED_CONFIG) else {}),
    }


def expanded(variables: Mapping[str, str]) -> dict[str, str]:
    """Expand references as the kubelet does: a value may refer to the variables before it."""
    known: dict[str, str] = {}
    for name, value in variables.items():
        known[name] = substitute(value, known)
    return known


def _start_time(pid: int) -> str:
    """The start time of a process, which distinguishes it from a later one with the same id; empty if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie has ended and only awaits its parent.
    return "" if fields[0] == "Z" else fields[19]


def _variables(process: Path) -> list[bytes]:
    """The environment of a process; empty if it belongs to another user or has ended."""
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
