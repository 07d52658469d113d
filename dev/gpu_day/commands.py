"""The three commands for the machine with the GPU, each the most telling parts first, each within its time.

Whatever happens, what was found so far is in three kinds of files: ``N.json`` with the outcome of every part, ``N.log``
with what it printed, and the two of bench/gpu_results.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from gpu_day.places import ROOT, SITE, WHEELS, variables

# A part that has less is not begun. The benchmark ends by itself so long before its process is ended.
_LEAST_SECONDS, _MARGIN_SECONDS = 5.0, 10.0
# With whatever pytest and plugins are there: our own options are for the locked ones.
_PYTEST = ("-m", "pytest", "-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default", "-q", "-rA")
_TESTS = (*_PYTEST, "--results", "{results}")
_PAIRS = ("bench/gpu_truth.py", "--measure-only", "--fixtures", "--folder", "{results}", "--seconds", "{seconds}")
_ONE = ("bench/gpu_measure.py", "0.5B", "bf16-ddp-none-mb4x1", "1", "--record")


class Part(NamedTuple):
    """One process: its words for Python, how long it may take, and what it has instead where it is rehearsed.

    Where it ``tells``, its last line of JSON is kept with its outcome.
    """

    name: str
    words: tuple[str, ...]
    seconds: float
    rehearsed: tuple[str, ...] = ()
    tells: bool = False


# An emulated GPU computes nothing: what compares losses is collected there, and tried by tests/contract.
_COLLECT, _COUNTERS = ("--collect-only",), ("-k", "counters_follow")
COMMANDS = {
    "1": (
        Part("constants", ("dev/gpu_day/constants.py",), 90, tells=True),
        Part("counters and out-of-memory", (*_TESTS, "tests/gpu/test_gpu_memory.py"), 150, _COUNTERS),
        Part("small pairs", (*_PAIRS, "--model", "0.1B", "--model", "0.5B"), 200, ("--most", "1")),
        Part("steps without a recording", (*_ONE, "none"), 60, tells=True),
        Part("steps with recorded events", (*_ONE, "events"), 60, tells=True),
        Part("steps with recorded stacks", (*_ONE, "stacks"), 60, tells=True),
    ),
    "2": (Part("pairs", _PAIRS, 540, ("--model", "0.1B", "--most", "1")),),
    "3": (
        Part("a job from its first probe to its end", (*_TESTS, "tests/gpu/test_gpu_run.py"), 150, _COLLECT),
        Part("scripts under their plans", (*_TESTS, "tests/gpu/test_gpu_scripts.py"), 300, _COLLECT),
        Part("engine, resume", (*_TESTS, "tests/gpu/test_gpu_engine.py"), 200, _COLLECT),
        Part("offloads", (*_TESTS, "tests/gpu/test_gpu_offload.py"), 120, _COLLECT),
        Part("allocator", (*_TESTS, "tests/gpu/test_gpu_plans.py", "-k", "allocator_model"), 120, _COLLECT),
    ),
}


def run(name: str, results: Path, seconds: float, is_rehearsal: bool = False) -> int:
    """Run the parts of a command until its time is up; 1 where one did not end well or did not begin."""
    results = results.absolute()
    results.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    _install_missing()
    outcomes: list[dict[str, Any]] = []
    for part in COMMANDS[name]:
        left = deadline - time.monotonic()
        if left < _LEAST_SECONDS:
            outcomes.append({"name": part.name, "outcome": "no time was left"})
        else:
            limit = min(part.seconds, left)
            outcomes.append(_outcome(part, results, results / f"{name}.log", limit, is_rehearsal))
        kept = {"rehearsal": is_rehearsal, "parts": outcomes}
        (results / f"{name}.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
        print(f"gpu-day {name}: {part.name}: {outcomes[-1]['outcome']}", flush=True)
    return int(any(each["outcome"] != "ended well" for each in outcomes))


def _outcome(part: Part, results: Path, log: Path, limit: float, is_rehearsal: bool) -> dict[str, Any]:
    put_in = {"{results}": str(results), "{seconds}": f"{limit - _MARGIN_SECONDS:.0f}"}
    words = [put_in.get(word, word) for word in (*part.words, *(part.rehearsed if is_rehearsal else ()))]
    began = time.monotonic()
    with log.open("ab") as file:
        file.write(f"\n== {part.name}: {' '.join(words)}\n".encode())
        file.flush()
        start = file.tell()
        code = _ended([sys.executable, *words], file, limit)
    outcome = f"cut off after {limit:.0f} s" if code is None else f"failed with {code}" if code else "ended well"
    told = _told(log, start) if part.tells else None
    return {"name": part.name, "outcome": outcome, "seconds": round(time.monotonic() - began, 1), "told": told}


def _ended(words: Sequence[str], file: Any, limit: float) -> int | None:
    """The exit code of a process, or None if it had to be ended, with whatever it has started."""
    process = subprocess.Popen(
        words, cwd=ROOT, env=variables(), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _told(log: Path, start: int) -> dict[str, Any] | None:
    lines = log.read_bytes()[start:].decode("utf-8", "replace").splitlines()
    found = next((line for line in reversed(lines) if line.startswith("{")), None)
    return json.loads(found) if found else None


def _install_missing() -> None:
    """Unpack the wheels of what this Python has not; pip need not be there."""
    for wheel in sorted((ROOT / WHEELS).glob("*.whl")):
        name = wheel.name.partition("-")[0]
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(ROOT / SITE)
