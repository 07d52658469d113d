"""Runs one part of a command as a process and records its outcome in ``N.jsonl``, after earlier ones.

The file has a line for each run of the command and for each part of it. It is only ever appended to: the machine may
disappear at any moment, and a file that is replaced would need a second one beside it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dev.gpu_day.places import ROOT

# A part with less time left is not started. The benchmark stops this long before its time limit.
_LEAST_SECONDS, _MARGIN_SECONDS = 5.0, 15.0
# For what is interrupted to say what it knows: of its limit, this share and so many seconds at most.
_GRACE_SHARE, _GRACE_SECONDS = 0.25, 8.0
_KILLED_SHARE = 0.25  # of that, for what is killed to end
_MARK = "GPU_DAY_RESULTS"  # marks each process that a part starts, by its environment
_VISIBLE = "CUDA_VISIBLE_DEVICES"
WELL, _NO_TEST = "ended well", "ran no test"
_NO_GPU = "failed with 2"  # only machine.py
_NOTHING_COLLECTED = 5  # pytest's exit code


def tell(sentence: str) -> None:
    """Print at once. Go on if the output is closed, as after a lost connection: the results are in files."""
    try:
        print(sentence, flush=True)
    except BrokenPipeError:
        # Buffered output would be written once more at the exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Part(NamedTuple):
    """One process: its Python arguments, time limit, and arguments for a rehearsal.

    If it ``tells``, its last line of JSON is stored with its outcome. ``expected`` are the seconds that it takes where
    nothing hangs. It ``needs`` the packages without which nothing of it would run. It sees one of several GPUs, unless
    it is for ``several``.
    """

    name: str
    words: tuple[str, ...]
    seconds: float
    rehearsed: tuple[str, ...] = ()
    tells: bool = False
    expected: float = 0.0
    needs: tuple[str, ...] = ()
    several: bool = False

    @property
    def kept_seconds(self) -> float:
        """The limit that earlier parts leave it, even if they hang: it is interrupted a little before its limit."""
        return self.expected + min(_GRACE_SECONDS, self.expected * _GRACE_SHARE / (1 - _GRACE_SHARE)) or self.seconds

    def given(self, times: float) -> Part:
        """The same with so many times its limit."""
        return self._replace(seconds=times * self.seconds)


class Run:
    """One run of a command; the outcome of each part is written when it has ended."""

    def __init__(self, name: str, results: Path, environment: Mapping[str, str], is_rehearsal: bool) -> None:
        self.outcomes: list[dict[str, Any]] = []
        self._name, self._results = name, results
        self._environment = {**environment, _MARK: str(results)}
        self._one_gpu: dict[str, str] = {}
        self._is_rehearsal = is_rehearsal

    def begin(self, machine: Part, limit: float) -> bool:
        """Query the machine; return False if it has no GPU. A timeout is not an error."""
        # Those of a command that was killed, wherever its results went, would count as measured memory. An emulated
        # GPU has no memory in common with another.
        _end_processes(self._environment[_MARK] if self._is_rehearsal else None)
        # The last line of a run that was killed while it wrote may be incomplete.
        self._append("\n" if _is_cut_off(self._file) else "", {"rehearsal": self._is_rehearsal})
        found = self._outcome(machine, self._log, limit)
        self._keep(found)
        if (gpus := (found["told"] or {}).get("gpus", 1)) > 1:
            # A library might spread a measurement for one over all of them.
            self._one_gpu = {_VISIBLE: (self._environment.get(_VISIBLE) or "0").partition(",")[0]}
            tell(f"gpu-day {self._name}: there are {gpus} GPUs; a part finds the first alone, unless it is for several")
        return bool(found["outcome"] != _NO_GPU)

    def add(self, part: Part, left: float, limit: float) -> None:
        """Run one part, if there is time left for it."""
        if left < _LEAST_SECONDS:
            self._keep({"name": part.name, "outcome": "no time was left"})
        else:
            self._keep(self._outcome(part, self._log, limit))

    def leave_out(self, part: Part, reason: str) -> None:
        """Tell why a part does not run."""
        self._keep({"name": part.name, "outcome": reason})

    @property
    def _log(self) -> Path:
        return self._results / f"{self._name}.log"

    @property
    def _file(self) -> Path:
        return self._results / f"{self._name}.jsonl"

    def _append(self, before: str, told: Mapping[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{before}{json.dumps(told)}\n")

    def _keep(self, outcome: dict[str, Any]) -> None:
        self.outcomes.append(outcome)
        self._append("", outcome)
        reason = f": {outcome['last_line']}" if outcome.get("last_line") else ""
        tell(f"gpu-day {self._name}: {outcome['name']}: {outcome['outcome']}{reason}")

    def _outcome(self, part: Part, log: Path, limit: float) -> dict[str, Any]:
        put_in = {"{results}": str(self._results), "{seconds}": f"{limit - _MARGIN_SECONDS:.0f}"}
        words = [put_in.get(word, word) for word in (*part.words, *(part.rehearsed if self._is_rehearsal else ()))]
        began, computed = time.monotonic(), _computed_seconds()
        with log.open("ab") as file:
            file.write(f"\n== {part.name}: {' '.join(words)}\n".encode())
            file.flush()
            start = file.tell()
            environment = {**self._environment, **({} if part.several else self._one_gpu)}
            code = _ended([sys.executable, *words], environment, file, limit)
        seconds, cpu_seconds = round(time.monotonic() - began, 1), round(_computed_seconds() - computed, 1)
        lines = log.read_bytes()[start:].decode("utf-8", "replace").splitlines()
        outcome = f"cut off after {limit:.0f} s" if code is None else f"failed with {code}" if code else WELL
        tests = _tests(lines) if "pytest" in words else {}
        if tests and not tests["passed"] and code in (0, _NOTHING_COLLECTED):
            outcome = _NO_TEST
        told = _last_object(lines) if part.tells else None
        last = {} if outcome == WELL else {"last_line": next(filter(str.strip, reversed(lines)), "").strip()[:300]}
        took = {"seconds": seconds, "cpu_seconds": cpu_seconds}
        return {"name": part.name, "outcome": outcome, **took, "told": told, **tests, **last}


def _computed_seconds() -> float:
    """The processors' time of all processes that have ended so far, with those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _is_cut_off(file: Path) -> bool:
    return file.exists() and not file.read_bytes().endswith(b"\n")


def runs_of(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The runs of a command with their parts, and how many lines of the file cannot be read."""
    runs: list[dict[str, Any]] = []
    unread = 0
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            told = json.loads(line)
            if "rehearsal" in told:
                runs.append({"rehearsal": told["rehearsal"], "parts": []})
            else:
                runs[-1]["parts"].append({"name": told["name"], "outcome": told["outcome"], **told})
        except (ValueError, KeyError, TypeError, IndexError):
            unread += bool(line.strip())
    return runs, unread


def _ended(words: Sequence[str], environment: Mapping[str, str], file: Any, limit: float) -> int | None:
    """Run a process; return its exit code, or None if it was ended at the limit. No process that it started is left.

    It is interrupted first, so that pytest can print its summary.
    """
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=file,
        start_new_session=True,
        preexec_fn=_be_interruptible,
    )
    grace = min(_GRACE_SECONDS, limit * _GRACE_SHARE)
    killed_seconds = grace * _KILLED_SHARE
    try:
        return process.wait(limit - grace)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace - killed_seconds)
        return None
    finally:
        _end_processes(environment[_MARK])
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver does not end
            process.wait(killed_seconds)


def _be_interruptible() -> None:
    """Undo what a shell does to commands in its background, of which the part would inherit that it ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_processes(results: str | None) -> None:
    """Kill all processes with the mark of these results, or of any.

    `memtune run` and its launcher put theirs into sessions of their own.
    """
    mark = f"{_MARK}={results or ''}".encode()
    for _ in range(3):  # a process may have started another meanwhile
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is not ours
                variables = (each / "environ").read_bytes().split(b"\0")
                is_marked = mark in variables if results else any(one.startswith(mark) for one in variables)
                if is_marked and int(each.name) != os.getpid():
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


def _last_object(lines: Iterable[str]) -> dict[str, Any] | None:
    for line in reversed(list(lines)):
        with suppress(ValueError):  # truncated
            if line.startswith("{"):
                return dict(json.loads(line))
    return None
