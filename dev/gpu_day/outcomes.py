"""One part of a command: a process, how it ended, and what is kept of it in ``N.json``, whatever is there already."""

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

from gpu_day.places import ROOT

# A part that has less is not begun. The benchmark ends by itself so long before its process is ended.
_LEAST_SECONDS, _MARGIN_SECONDS, _GRACE_SECONDS = 5.0, 15.0, 8.0
WELL, _NO_TEST = "ended well", "ran no test"
_NO_GPU = "failed with 2"  # of machine.py alone
_NOTHING_COLLECTED = 5  # as pytest ends


class Part(NamedTuple):
    """One process: its words for Python, how long it may take at most, and what it has instead where it is rehearsed.

    Where it ``tells``, its last line of JSON is kept with its outcome.
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
    """One run of a command; its outcomes are written down after each part, behind those of earlier runs."""

    def __init__(self, name: str, results: Path, environment: Mapping[str, str], is_rehearsal: bool) -> None:
        self.outcomes: list[dict[str, Any]] = []
        self._name, self._results, self._environment = name, results, environment
        self._is_rehearsal = is_rehearsal
        self._earlier: list[dict[str, Any]] = []

    def begin(self, machine: Part, limit: float) -> bool:
        """Ask what this machine is; False, and a sentence, where it has no GPU. No answer in time stops nothing."""
        with TemporaryDirectory() as directory:
            log = Path(directory, "log")
            found = self._outcome(machine, log, limit)
            text = log.read_text(encoding="utf-8", errors="replace")
        self._stand_apart(found["told"] or {})
        self._earlier = self._runs()
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

    @property
    def _file(self) -> Path:
        return self._results / f"{self._name}.json"

    def _runs(self) -> list[dict[str, Any]]:
        """Those that are in the file. What cannot be read there is kept in the log."""
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
        # The machine may be taken away at any moment: the file is there whole, as it was or as it is.
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"runs": runs}, indent=1), encoding="utf-8")
        new.replace(self._file)
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
        seconds = round(time.monotonic() - began, 1)
        lines = log.read_bytes()[start:].decode("utf-8", "replace").splitlines()
        outcome = f"cut off after {limit:.0f} s" if code is None else f"failed with {code}" if code else WELL
        tests = _tests(lines) if "pytest" in words else {}
        if tests and not tests["passed"] and code in (0, _NOTHING_COLLECTED):
            outcome = _NO_TEST
        told = _told(lines) if part.tells else None
        return {"name": part.name, "outcome": outcome, "seconds": seconds, "told": told, **tests}


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


def _tests(lines: Sequence[str]) -> dict[str, Any]:
    """How many passed and how many were skipped, as pytest's last line says, and why those were."""
    summary = next((line for line in reversed(lines) if re.match(r"=+ .* in [\d.]+s", line)), "")
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|skipped)\b", summary)}
    skipped = (re.match(r"SKIPPED \[(\d+)\] \S+: (.+)", line) for line in lines)
    reasons: Counter[str] = Counter()
    for count, reason in (found.groups() for found in skipped if found):
        reasons[reason] += int(count)
    return {**{word: counts.get(word, 0) for word in ("passed", "skipped")}, "reasons": dict(reasons)}


def _told(lines: Iterable[str]) -> dict[str, Any] | None:
    for line in reversed(list(lines)):
        with suppress(ValueError):  # one that was cut off
            if line.startswith("{"):
                return dict(json.loads(line))
    return None
