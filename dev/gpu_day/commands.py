"""The three commands for the machine with the GPU, each the most telling parts first, each within its time.

Whatever happens, what was found so far is in three kinds of files: ``N.json`` with the outcome of every part, ``N.log``
with what it printed, and the two of bench/gpu_results.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from gpu_day.places import ROOT, SITE, WHEELS, variables
from gpu_day.wheels import unpack

# A part that has less is not begun. The benchmark ends by itself so long before its process is ended.
_LEAST_SECONDS, _MARGIN_SECONDS, _GRACE_SECONDS = 5.0, 15.0, 8.0
# With whatever pytest is there: our own options are for the locked one.
_PYTEST = (
    "-m",
    "pytest",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=--import-mode=importlib",
    "-o",
    "filterwarnings=default",
    "-v",
    "-rA",
)
_TESTS = (*_PYTEST, "--results", "{results}")
_PAIRS = ("bench/gpu_truth.py", "--measure-only", "--fixtures", "--folder", "{results}", "--seconds", "{seconds}")
_ONE = ("bench/gpu_measure.py", "0.5B", "bf16-ddp-none-mb4x1", "1", "--record")


class Part(NamedTuple):
    """One process: its words for Python, how long it may take at most, and what it has instead where it is rehearsed.

    Where it ``tells``, its last line of JSON is kept with its outcome.
    """

    name: str
    words: tuple[str, ...]
    seconds: float
    rehearsed: tuple[str, ...] = ()
    tells: bool = False


_WELL = "ended well"
_NO_GPU = "failed with 2"  # of machine.py alone
_MACHINE = Part("machine", ("dev/gpu_day/machine.py",), 90, tells=True)
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
    """Run the parts of a command until its time is up; 1 where one did not end well or did not begin.

    Without a GPU nothing is begun, and the code is 2.
    """
    deadline = time.monotonic() + seconds
    results = results.absolute()
    try:
        results.mkdir(parents=True, exist_ok=True)
        (results / f"{name}.log").touch()  # the directory may be there, and nobody may write in it
    except OSError as error:
        print(f"gpu-day: results cannot be written: {error}; name another directory by --results", file=sys.stderr)
        return 2
    site, refused = unpack(ROOT / WHEELS, ROOT / SITE)
    for sentence in refused:
        print(f"gpu-day {name}: {sentence}", flush=True)
    kept = _Kept(name, results, variables(site), is_rehearsal)
    if not kept.begin(min(_MACHINE.seconds, seconds)):
        return 2
    parts = COMMANDS[name]
    for place, part in enumerate(parts):
        left, wanted = deadline - time.monotonic(), sum(each.seconds for each in parts[place:])
        # Where time is short each part has its share of it, so that one that hangs leaves time for those behind it.
        kept.add(part, left, part.seconds * min(1.0, left / wanted))
    return int(any(each["outcome"] != _WELL for each in kept.outcomes))


class _Kept:
    """The outcomes of a command, written down after each part."""

    def __init__(self, name: str, results: Path, environment: Mapping[str, str], is_rehearsal: bool) -> None:
        self.outcomes: list[dict[str, Any]] = []
        self._name, self._results, self._environment = name, results, environment
        self._is_rehearsal = is_rehearsal

    def begin(self, limit: float) -> bool:
        """Ask what this machine is; False, and a sentence, where it has no GPU. No answer in time stops nothing."""
        with TemporaryDirectory() as directory:
            log = Path(directory, "log")
            found = self._outcome(_MACHINE, log, limit)
            text = log.read_text(encoding="utf-8", errors="replace")
        self._stand_apart(found["told"] or {})
        with self._log.open("a", encoding="utf-8") as file:
            file.write(text)
        self._keep(found)
        if found["outcome"] != _NO_GPU:
            return True
        print(f"gpu-day: {text.strip().splitlines()[-1]}", file=sys.stderr)
        return False

    def add(self, part: Part, left: float, limit: float) -> None:
        """Run one part, unless there is no time left for it."""
        if left < _LEAST_SECONDS:
            self._keep({"name": part.name, "outcome": "no time was left"})
        else:
            self._keep(self._outcome(part, self._log, limit))

    @property
    def _log(self) -> Path:
        return self._results / f"{self._name}.log"

    def _keep(self, outcome: dict[str, Any]) -> None:
        self.outcomes.append(outcome)
        kept = {"rehearsal": self._is_rehearsal, "parts": self.outcomes}
        (self._results / f"{self._name}.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
        print(f"gpu-day {self._name}: {outcome['name']}: {outcome['outcome']}", flush=True)

    def _stand_apart(self, machine: Mapping[str, Any]) -> None:
        """What was measured on another GPU stays as it is: this one's results are in a directory within."""
        pairs = self._results / "pairs.jsonl"
        first: dict[str, Any] = {}
        with suppress(OSError, ValueError):  # not there, or cut off as it was written
            first = json.loads(pairs.read_text(encoding="utf-8").partition("\n")[0])
        product = machine.get("product", first.get("product"))
        if first.get("product", product) != product:
            self._results /= re.sub(r"\W+", "-", product)
            self._results.mkdir(exist_ok=True)
            print(f"gpu-day {self._name}: {pairs} is of another GPU; the results are in {self._results}", flush=True)

    def _outcome(self, part: Part, log: Path, limit: float) -> dict[str, Any]:
        put_in = {"{results}": str(self._results), "{seconds}": f"{limit - _MARGIN_SECONDS:.0f}"}
        words = [put_in.get(word, word) for word in (*part.words, *(part.rehearsed if self._is_rehearsal else ()))]
        began = time.monotonic()
        with log.open("ab") as file:
            file.write(f"\n== {part.name}: {' '.join(words)}\n".encode())
            file.flush()
            start = file.tell()
            code = _ended([sys.executable, *words], self._environment, file, limit)
        outcome = f"cut off after {limit:.0f} s" if code is None else f"failed with {code}" if code else _WELL
        told = _told(log, start) if part.tells else None
        return {"name": part.name, "outcome": outcome, "seconds": round(time.monotonic() - began, 1), "told": told}


def _ended(words: Sequence[str], environment: Mapping[str, str], file: Any, limit: float) -> int | None:
    """The exit code of a process, or None if it had to be ended, with whatever it has started.

    It is interrupted first, so that pytest can still end with its summary.
    """
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
    )
    grace = min(_GRACE_SECONDS, limit / 4)
    try:
        return process.wait(limit - grace)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _told(log: Path, start: int) -> dict[str, Any] | None:
    lines = log.read_bytes()[start:].decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        with suppress(ValueError):  # one that was cut off
            if line.startswith("{"):
                return dict(json.loads(line))
    return None
