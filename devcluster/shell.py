"""Running commands, and the one error that the user sees as a sentence."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_began = time.monotonic()


class ClusterError(Exception):
    """What went wrong, where, and what to do; shown without a traceback."""


def tail(path: Path, lines: int = 15) -> str:
    if not path.is_file():
        return f"  (no log at {path})"
    last = path.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"  {line[:400]}" for line in last)


def run(argv: Sequence[str], *, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run to the end and return standard output; a failure carries the command and what it said."""
    done = subprocess.run(argv, input=stdin, env=env, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise ClusterError(f"`{' '.join(argv)}` failed with exit code {done.returncode}:\n{said}")
    return done.stdout


def run_logged(
    argv: Sequence[str], log: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run something long with its output in a log; a failure shows the tail of that log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        done = subprocess.run(argv, cwd=cwd, env=env, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(argv)}` failed ({done.returncode}); the end of {log}:\n{tail(log)}")


def write_new(path: Path, content: str) -> bool:
    """Replace a file at once and whole; says whether the content is another one than before."""
    if path.exists() and path.read_text() == content:
        return False
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.rename(path)
    return True


def say(text: str) -> None:
    """Tell of progress, with the time since the command began."""
    print(f"[{time.monotonic() - _began:5.1f} s] {text}", flush=True)
