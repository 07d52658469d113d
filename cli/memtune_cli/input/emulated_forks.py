"""Starts the emulated runs of several plans of one job so that they share the import of their libraries.

For each setting of torch's allocator that several plans have, one Python imports what the script imports first and
forks each run (`memtune_runner.forks`). Where that cannot be, each run is a new Python.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from memtune.wire import environment

if TYPE_CHECKING:
    from memtune.plans.plan import Plan

_END_SECONDS = 5
_LOOK_AGAIN_SECONDS = 0.1


class Process(Protocol):
    """The used part of `subprocess.Popen`, or of a fork. ``stdout`` has its errors, too."""

    pid: int
    stdout: IO[bytes] | None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code, or raise subprocess.TimeoutExpired."""
        ...

    def terminate(self) -> None:
        """Ask it to end."""


def started(words: Sequence[str], variables: Mapping[str, str], workdir: Path) -> Process:
    """Start a new process, in a session of its own."""
    return subprocess.Popen(
        words, env=variables, cwd=workdir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


class EmulatedForks:
    """Starts the runs of these plans of a job. The Pythons that are forked end with the block.

    ``time_limit`` is how many seconds their imports may take.
    """

    def __init__(self, plans: Sequence[Plan], directory: Path, time_limit: int) -> None:
        self._directory, self._time_limit = directory, time_limit
        self._times = Counter(map(_setting, plans))
        self._parents: dict[tuple[bool, int], _Parent | None] = {}

    def __enter__(self) -> EmulatedForks:
        return self

    def __exit__(self, *_: object) -> None:
        for parent in filter(None, self._parents.values()):
            parent.end()

    def start(self, plan: Plan, words: Sequence[str], variables: Mapping[str, str], workdir: Path) -> Process:
        """Start the run of a plan: a fork where it can be one."""
        setting = _setting(plan)
        if setting not in self._parents and self._times[setting] > 1 and _runs_python(words):
            place = self._directory / f"forks-{len(self._parents) + 1}"
            self._parents[setting] = _Parent.started(place, words, variables, workdir, self._time_limit)
        parent = self._parents.get(setting)
        forked = parent.fork(words, variables, workdir) if parent else None
        return forked or started(words, variables, workdir)


def _setting(plan: Plan) -> tuple[bool, int]:
    return plan.expandable_segments, plan.max_split_size_mib


def _runs_python(words: Sequence[str]) -> bool:
    from memtune_runner.command.command import CommandError, Kind, parse

    try:
        return parse(_users(words)).kind in (Kind.SCRIPT, Kind.MODULE)
    except CommandError:
        return False


def _users(words: Sequence[str]) -> list[str]:
    return list(words[words.index("--") + 1 :])


class _Parent:
    """A launcher whose rank has imported libraries, and forks others."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process, self._connection = process, connection

    @classmethod
    def started(
        cls, directory: Path, words: Sequence[str], variables: Mapping[str, str], workdir: Path, time_limit: int
    ) -> _Parent | None:
        """Start it, and wait for its imports; None if it cannot be forked."""
        directory.mkdir()
        place = str(directory / "socket")
        own = {
            environment.REPORT_PATH: str(directory / "report.json"),
            environment.TERMINATION_MESSAGE_PATH: str(directory / "message"),
            environment.EMULATED_FORKS: place,
        }
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            near = os.open(directory, os.O_RDONLY)
            try:
                listening.bind(f"/proc/self/fd/{near}/socket")  # the whole path may be too long for a socket
            finally:
                os.close(near)
            listening.listen()
            process = subprocess.Popen(
                words, env={**variables, **own}, cwd=workdir, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            try:
                ends_at = time.monotonic() + time_limit
                while process.poll() is None and time.monotonic() < ends_at:
                    if select.select([listening], [], [], _LOOK_AGAIN_SECONDS)[0]:
                        return cls(process, listening.accept()[0])
            except BaseException:  # as Ctrl-C
                _end(process)
                raise
        _end(process)
        return None

    def fork(self, words: Sequence[str], variables: Mapping[str, str], workdir: Path) -> _Fork | None:
        """Start a run; None if this has ended, or the environment is too large for a message."""
        request = {"words": _users(words), "environment": dict(variables), "directory": str(workdir)}
        read, write = os.pipe()
        told, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with telling:
                socket.send_fds(self._connection, [json.dumps(request).encode()], [write, write, telling.fileno()])
            process = int(told.recv(64))
        except (OSError, ValueError):
            os.close(read)
            told.close()
            return None
        finally:
            os.close(write)
        return _Fork(process, os.fdopen(read, "rb"), told)

    def end(self) -> None:
        """End it with everything that it started."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        _end(self._process)


class _Fork:
    """A run's process, forked by the parent. A socket reports how it ends."""

    def __init__(self, pid: int, stdout: IO[bytes], told: socket.socket) -> None:
        self.pid, self._told = pid, told
        self.stdout: IO[bytes] | None = stdout
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._told.settimeout(timeout)
            try:
                self._code = int(self._told.recv(64) or -signal.SIGKILL)
            except TimeoutError:
                raise subprocess.TimeoutExpired("memtune_runner", timeout or 0) from None
            self._told.close()
        return self._code

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def kill(process: Process) -> None:
    """End a process with everything that it has started; somebody else may wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: Process) -> None:
    kill(process)
    process.wait()
