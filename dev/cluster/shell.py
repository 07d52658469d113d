"""Runs commands and writes state files; defines ClusterError, which is shown to the user as a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from dev.cluster import disk

_began = time.monotonic()
# For programs in Go, whose garbage collection takes a fifth of their time by default.
GO_SETTINGS = {"GOGC": "400"}

# Long commands run in their own namespaces: when the waiting command dies, even by SIGKILL, the kernel ends all their
# processes and mounts.
_BOUND = ("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_bound: set[subprocess.Popen[bytes]] = set()
_ending = threading.Event()


class ClusterError(Exception):
    """An error with its place and remedy, shown without a traceback."""


class BrokenStateError(ClusterError):
    """A state file is unreadable."""


def tail(path: Path, lines: int = 15) -> str:
    if not path.is_file():
        return f"  (no log at {path})"
    last = path.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"  {line[:400]}" for line in last)


def run(argv: Sequence[str], *, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return its standard output; an error includes the command and its output."""
    done = subprocess.run(argv, input=stdin, env=_in_english(env), text=True, capture_output=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise _failure(f"`{' '.join(argv)}` failed with exit code {done.returncode}:\n{said}")
    return done.stdout


def run_logged(
    argv: Sequence[str],
    log: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    survives: bool = False,
) -> None:
    """Run a long command with its output in a log; an error shows the tail of the log.

    It dies with this process unless it ``survives``; then it holds this process's locks until it ends.
    """
    if _ending.is_set():
        raise ClusterError(f"`{' '.join(argv)}` was not begun: this command is being ended")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        # Ctrl-C must only reach this process, which then ends its children.
        process = subprocess.Popen(
            [*(() if survives else _BOUND), *argv],
            cwd=cwd,
            env=_in_english(env),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=not survives,
            close_fds=not survives,
        )
    with process, nullcontext() if survives else _held(process):
        code = process.wait()
    if code != 0:
        raise _failure(f"`{' '.join(argv)}` failed ({code}); the end of {log}:\n{tail(log)}")


def _in_english(env: Mapping[str, str] | None) -> dict[str, str]:
    """Force English messages, since they are searched for known errors."""
    return {**(os.environ if env is None else env), "LC_ALL": "C.UTF-8"}


def _failure(said: str) -> ClusterError:
    return ClusterError(f"{disk.full()}\n{said}" if disk.is_full(said) else said)


@contextmanager
def _held(process: subprocess.Popen[bytes]) -> Iterator[None]:
    _bound.add(process)
    if _ending.is_set():
        process.kill()
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        _bound.discard(process)


def end_bound() -> None:
    """End the commands that threads wait for and prevent new ones, since only the main thread is interrupted."""
    _ending.set()
    for process in list(_bound):
        process.kill()


def write_new(path: Path, content: str) -> bool:
    """Replace a file atomically; return whether its content changed."""
    if path.exists() and path.read_text() == content:
        return False
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.rename(path)
    return True


def read_whole(path: Path) -> Any:
    """Read a JSON state file. Files are written atomically, but a power cut may leave them empty."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise BrokenStateError(
            f"{path} is broken ({error}): run `python3 -m dev.cluster down`, then `python3 -m dev.cluster up`"
        ) from error


def say(text: str) -> None:
    """Print progress with the elapsed time."""
    print(f"[{time.monotonic() - _began:5.1f} s] {text}", flush=True)
