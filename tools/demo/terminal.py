"""Output and command helpers of the demo."""

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
# Exists while there is a kind cluster made by a demo. Outside BUILD, which may be deleted separately.
KIND_MADE = ROOT / "build" / "demo-kind-cluster"
MEMTUNE = ROOT / ".venv" / "bin" / "memtune"
INTERRUPTED = 130


class DemoError(Exception):
    """An error that ends the demo, shown without a traceback."""


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print the title of a step and, when done, its duration."""
    print(f"\n== {title}", flush=True)
    began = time.monotonic()
    yield
    print(f"   {time.monotonic() - began:.1f} s", flush=True)


def call(*command: str) -> None:
    """Run a command with its output on the terminal."""
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
    """Print and run a `memtune` command."""
    print(f"\n$ memtune {' '.join(words)}", flush=True)
    call(str(MEMTUNE), *words)


def check_recovery(attempts: list[dict[str, str]]) -> None:
    """Fail the demo unless the job ran out of memory and recovered."""
    verdicts = [attempt.get("verdict") for attempt in attempts]
    if verdicts != ["device-oom", "succeeded"]:
        raise DemoError(f"the demo needs an out-of-memory and its recovery, but the attempts ended as {verdicts}")


def open_report() -> None:
    """Open the report in a browser, if this machine has a display."""
    has_screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if has_screen and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ:
        webbrowser.open(REPORT.as_uri())
