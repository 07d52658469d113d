"""Runs one part of a command as a process and records its outcome in ``N.json``, after earlier ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dev.gpu_day.places import ROOT

# A part with less time left is not started. The benchmark stops this long before its time limit.
_LEAST_SECONDS, _MARGIN_SECONDS, _GRACE_SECONDS = 5.0, 15.0, 8.0
_MARK = "GPU_DAY_RESULTS"  # marks each process that a part starts, by its environment
WELL, _NO_TEST = "ended well", "ran no test"
_NO_GPU = "failed with 2"  # only machine.py
_NOTHING_COLLECTED = 5  # pytest's exit code


class Part(NamedTuple):
    """One process: its Python arguments, time limit, and arguments for a rehearsal.

    If it ``tells``, its last line of JSON is stored with its outcome.
    """

    name: str
    words: tuple[str, ...]
    seconds: float
    rehearsed: tuple[str, ...] = ()
    tells: bool = False

    def given(self, times: float) -> Part:
        """The same with so many times its limit."""
        return self._replace(seconds=times * self.seconds)


class Run:
    """One run of a command; outcomes are written after each part, after those of earlier runs."""

    def __init__(self, name: str, results: Path, environment: Mapping[str, str], is_rehearsal: bool) -> None:
        self.outcomes: list[dict[str, Any]] = []
        self._name, self._results = name, results
        self._environment = {**environment, _MARK: str(results)}
        self._is_rehearsal = is_rehearsal
        self._earlier: list[dict[str, Any]] = []

    def begin(self, machine: Part, limit: float) -> bool:
        """Query the machine; return False if it has no GPU. A timeout is not an error."""
        _end_processes(self._environment)  # of a command that was killed: they would count as measured memory
        with TemporaryDirectory() as directory:
            log = Path(directory, "log")
            found = self._outcome(machine, log, limit)
            text = log.read_text(encoding="utf-8", errors="replace")
        self._stand_apart(found["told"] or {})
        self._earlier = self._runs()
        with self._log.open("a", encoding="utf-8") as file:
            file.write(text)
        self._keep(found)
        return bool(found["outcome"] != _NO_GPU)

    def add(self, part: Part, left: float, limit: float) -> None:
        """Run one part, if there is time left for it."""
        if left < _LEAST_SECONDS:
            self._keep({"name": part.name, "outcome": "no time was left"})
        else:
            self._keep(self._outcome(part, self._log, limit))

    @property
    def _log(self) -> Path:
        return self._results / f"{self._name}.log"

    @property
    def _file(self) -> Path:
        return self._results / f"{self._name}.json"

    def _runs(self) -> list[dict[str, Any]]:
        """The runs in the file. Unreadable content is kept in the log."""
        try:
            text = self._file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        try:
            return list(json.loads(text)["runs"])
        except (ValueError, KeyError, TypeError):
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"\n== {self._file.name}, which could not be read:\n{text}\n")
            print(f"gpu-day {self._name}: {self._file} cannot be read; it is kept in {self._log}", flush=True)
            return []

    def _keep(self, outcome: dict[str, Any]) -> None:
        self.outcomes.append(outcome)
        runs = [*self._earlier, {"rehearsal": self._is_rehearsal, "parts": self.outcomes}]
        # Written atomically, since the machine may disappear at any moment.
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"runs": runs}, indent=1), encoding="utf-8")
        new.replace(self._file)
        reason = f": {outcome['last_line']}" if outcome.get("last_line") else ""
        print(f"gpu-day {self._name}: {outcome['name']}: {outcome['outcome']}{reason}", flush=True)

    def _stand_apart(self, machine: Mapping[str, Any]) -> None:
        """Keep results of another GPU unchanged: this one's go to a subdirectory."""
        pairs = self._results / "pairs.jsonl"
        first: dict[str, Any] = {}
        with suppress(OSError, ValueError):  # missing or truncated
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
        seconds = round(time.monotonic() - began, 1)
        lines = log.read_bytes()[start:].decode("utf-8", "replace").splitlines()
        outcome = f"cut off after {limit:.0f} s" if code is None else f"failed with {code}" if code else WELL
        tests = _tests(lines) if "pytest" in words else {}
        if tests and not tests["passed"] and code in (0, _NOTHING_COLLECTED):
            outcome = _NO_TEST
        told = _told(lines) if part.tells else None
        last = {} if outcome == WELL else {"last_line": next(filter(str.strip, reversed(lines)), "").strip()[:300]}
        return {"name": part.name, "outcome": outcome, "seconds": seconds, "told": told, **tests, **last}


def _ended(words: Sequence[str], environment: Mapping[str, str], file: Any, limit: float) -> int | None:
    """Run a process; return its exit code, or None if it was ended at the limit. No process that it started is left.

    It is interrupted first, so that pytest can print its summary.
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
        _end_processes(environment)
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver does not end
            process.wait(grace)


def _end_processes(environment: Mapping[str, str]) -> None:
    """Kill all processes with this mark. `memtune run` and its launcher put theirs into sessions of their own."""
    mark = f"{_MARK}={environment[_MARK]}".encode()
    for _ in range(3):  # a process may have started another meanwhile
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is not ours
                if mark in (each / "environ").read_bytes().split(b"\0"):
                    os.kill(int(each.name), signal.SIGKILL)


def _tests(lines: Sequence[str]) -> dict[str, Any]:
    """The numbers of passed and skipped tests, and the reasons of the skips."""
    summary = next((line for line in reversed(lines) if re.match(r"=+ .* in [\d.]+s", line)), "")
    counts = Counter({word: int(count) for count, word in re.findall(r"(\d+) (passed|skipped)\b", summary)})
    if not summary:  # cut off before pytest wrote it
        ended = (re.search(r" (PASSED|SKIPPED)\b.*\[ *\d+%\]$", line) for line in lines)
        counts.update(found[1].lower() for found in ended if found)
    skipped = (re.match(r"SKIPPED \[(\d+)\] \S+: (.+)", line) for line in lines)
    reasons: Counter[str] = Counter()
    for count, reason in (found.groups() for found in skipped if found):
        reasons[reason] += int(count)
    return {"passed": counts["passed"], "skipped": counts["skipped"], "reasons": dict(reasons)}


def _told(lines: Iterable[str]) -> dict[str, Any] | None:
    for line in reversed(list(lines)):
        with suppress(ValueError):  # truncated
            if line.startswith("{"):
                return dict(json.loads(line))
    return None
