"""What every part of the demo prints and runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "demo"
REPORT = BUILD / "report.html"
JOB_FILE = ROOT / "examples" / "quickstart.yaml"
JOB = "quickstart"
KIND_CLUSTER = "memtune-demo"
# There while a kind cluster is that a demo made. Outside of BUILD, which ends on its own.
KIND_MADE = ROOT / "build" / "demo-kind-cluster"
MEMTUNE = ROOT / ".venv" / "bin" / "memtune"
INTERRUPTED = 130


class DemoError(Exception):
    """What keeps the demo from going on, shown without a traceback."""


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print what happens now and, when it is done, how long it took."""
    print(f"\n== {title}", flush=True)
    began = time.monotonic()
    yield
    print(f"   {time.monotonic() - began:.1f} s", flush=True)


def call(*command: str) -> None:
    """Run a command; its output goes straight to the terminal."""
    _run(command, None)


def answer(*command: str) -> str:
    """The standard output of a command."""
    return _run(command, subprocess.PIPE).strip()


def _run(command: Sequence[str], stdout: int | None) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, text=True, stdout=stdout, check=False)
    except FileNotFoundError as error:
        raise DemoError(f"there is no command `{command[0]}`") from error
    if done.returncode:
        raise DemoError(f"`{' '.join(command)}` ended with exit code {done.returncode}")
    return done.stdout or ""


def memtune(*words: str) -> None:
    """Show and run our own command as a user would."""
    print(f"\n$ memtune {' '.join(words)}", flush=True)
    call(str(MEMTUNE), *words)


def check_recovery(attempts: list[dict[str, str]]) -> None:
    """The demo shows a job that ran out of memory and recovered, or it has failed."""
    verdicts = [attempt.get("verdict") for attempt in attempts]
    if verdicts != ["device-oom", "succeeded"]:
        raise DemoError(f"the demo needs an out-of-memory and its recovery, but the attempts ended as {verdicts}")


def open_report() -> None:
    """Open the report in a browser if somebody sits in front of this machine's screen."""
    has_screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if has_screen and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ:
        webbrowser.open(REPORT.as_uri())
