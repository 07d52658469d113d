"""The pytest plugin: asserts the peak GPU memory of a training command on an emulated GPU.

pytest loads this module in every project that has MemTune installed, so it imports little and does nothing until a test
uses its fixture.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from memtune.units import amount, parse_bytes
from memtune_cli.input import peak_baseline
from memtune_cli.input.emulated_job import GPU, TIME_LIMIT_SECONDS
from memtune_cli.input.peak_baseline import BaselinePeak, PeakError
from memtune_cli.views import memory_lines

# Exit codes of `memtune emulate` that concern the machine, not the command.
_CANNOT_RUN = (3, 4)
_METRICS = ("allocated", "active", "reserved")
_OUTPUT_SHOWN = 30
_PROPERTY = "memtune"


class Settings(NamedTuple):
    """The options and the settings in the configuration file."""

    root: Path
    baseline: Path
    writes_baseline: bool
    tolerance: float
    python: str
    required: bool


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("memtune", "GPU memory on an emulated GPU (MemTune)")
    group.addoption(
        "--memtune-write-baseline", action="store_true", help="write the peaks of assert_peak to the baseline file"
    )
    group.addoption(
        "--memtune-require", action="store_true", help="fail, instead of skip, where no GPU can be emulated"
    )
    parser.addini("memtune_baseline", "the baseline file of assert_peak", default="memtune-baseline.json")
    parser.addini("memtune_tolerance", "by how much a peak may exceed its baseline: 0.01 is 1%", default="0.01")
    parser.addini("memtune_python", "the Python with a CUDA build of torch (default: the one that runs pytest)")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to update baselines under pytest-xdist, whose workers would overwrite each other's file."""
    if config.getoption("--memtune-write-baseline") and config.getoption("dist", "no") != "no":
        raise pytest.UsageError("--memtune-write-baseline needs one process: run it with -p no:xdist or -n 0")


@pytest.fixture
def assert_peak(request: pytest.FixtureRequest) -> AssertPeak:
    """Fixture that asserts the peak memory of a training command on an emulated GPU."""
    return AssertPeak(request.node, _settings(request.config))


def _settings(config: pytest.Config) -> Settings:
    root, tolerance = config.rootpath, config.getini("memtune_tolerance")
    try:
        number = float(tolerance)
    except ValueError:
        number = -1
    if not 0 <= number < 1:
        raise pytest.UsageError(f"memtune_tolerance is {tolerance!r}; write a share below 1, like 0.01 for 1%")
    named = config.getini("memtune_python")
    return Settings(
        root, root / config.getini("memtune_baseline"), config.getoption("--memtune-write-baseline"), number,
        str(root / named) if named else sys.executable, config.getoption("--memtune-require"),
    )  # fmt: skip


class AssertPeak:
    """The value of the fixture; call it with a command."""

    def __init__(self, node: pytest.Item, settings: Settings) -> None:
        self._node = node
        self._settings = settings
        self._names: set[str] = set()

    def __call__(
        self,
        command: str | Path | Sequence[str],
        *,
        at_most: str | int | None = None,
        metric: str = "reserved",
        gpu: str = GPU,
        ranks: int | None = None,
        gpus: int | None = None,
        time_limit: int = TIME_LIMIT_SECONDS,
        name: str = "",
    ) -> dict[str, Any]:
        """Run the command on an emulated GPU; return the result of `memtune emulate --format json`.

        The limit is ``at_most``, such as ``"12 GiB"``, or else this test's peak in the baseline file.
        """
        __tracebackhide__ = True
        if metric not in _METRICS:
            raise ValueError(f"metric is {metric!r}; use one of {', '.join(_METRICS)}")
        limit = None if at_most is None else _limit(at_most)
        key = self._key(name)
        options = ["--gpu", gpu]
        for option, number in (("--time-limit", time_limit), ("--ranks", ranks), ("--gpus", gpus)):
            options += [] if number is None else [option, str(number)]
        try:
            result, peak = self._emulate(self._words(command), options)
            self._node.user_properties.extend((_PROPERTY, f"{key}: {line}") for line in _others(result))
            self._check(key, peak, metric, limit)
        except PeakError as error:
            if isinstance(error, _CannotRunError) and not self._settings.required:
                pytest.skip(str(error))
            raise AssertionError(str(error)) from None
        return result

    def _key(self, name: str) -> str:
        key = f"{self._node.nodeid}: {name}" if name else self._node.nodeid
        if key in self._names:
            raise ValueError("assert_peak was called twice in this test; give each call a name of its own: name=...")
        self._names.add(key)
        return key

    def _words(self, command: str | Path | Sequence[str]) -> list[str]:
        if isinstance(command, Path):
            words = [str(command)]
        else:
            words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        if not words:
            raise ValueError("assert_peak needs a command or a script")
        return [self._settings.python, *words] if words[0].endswith(".py") else words

    def _emulate(self, words: Sequence[str], options: Sequence[str]) -> tuple[dict[str, Any], BaselinePeak]:
        root = self._settings.root
        with TemporaryDirectory() as directory:
            snapshot = Path(directory, "snapshot.pickle")
            emulate = [sys.executable, "-m", "memtune_cli.main", "emulate", "--format", "json"]
            # Resolve "python" and launchers from the test's environment.
            path = f"{Path(self._settings.python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            done = subprocess.run(
                [*emulate, *options, "--snapshot", str(snapshot), "--", *words],
                check=False, capture_output=True, text=True, cwd=root, env={**os.environ, "PATH": path},
            )  # fmt: skip
            if not done.stdout:
                sentence = done.stderr.strip().splitlines()[-1:] or [f"memtune emulate ended with {done.returncode}"]
                raise (_CannotRunError if done.returncode in _CANNOT_RUN else PeakError)(sentence[0])
            result = json.loads(done.stdout)
            lines = memory_lines.at_peak(snapshot, root) if snapshot.exists() else {}
        return result, _completed(result, lines, done.stderr)

    def _check(self, key: str, now: BaselinePeak, metric: str, limit: int | None) -> None:
        path, size = self._settings.baseline, now.peak_bytes[metric]
        peaks = peak_baseline.read(path)
        before = peaks.get(key)
        if self._settings.writes_baseline:
            peak_baseline.write(path, {**peaks, key: now})
        self._note(key, now, before, metric)
        if limit is not None:
            if size > limit:
                above = f"The {metric} peak is {amount(size, size)}, above the limit of {amount(limit, limit)}."
                raise PeakError(_text([above, *(peak_baseline.growth(now, before) if before else ())], now))
        elif not self._settings.writes_baseline:
            if before is None:
                raise PeakError(
                    f"{path.name} has no peak of {key}; run pytest --memtune-write-baseline and commit the file, or "
                    "give assert_peak a limit: at_most=..."
                )
            if reasons := list(peak_baseline.compare(now, before, metric, self._settings.tolerance)):
                raise PeakError("\n".join(reasons))

    def _note(self, key: str, now: BaselinePeak, before: BaselinePeak | None, metric: str) -> None:
        """Record the peak for the terminal summary and JUnit reports."""
        size = now.peak_bytes[metric]
        base = f", baseline {amount(before.peak_bytes[metric], before.peak_bytes[metric])}" if before else ""
        self._node.user_properties.append((_PROPERTY, f"{key}: {metric} {amount(size, size)}{base}"))


class _CannotRunError(PeakError):
    """This machine or Python cannot emulate a GPU."""


def _limit(at_most: str | int) -> int:
    return parse_bytes(str(at_most).replace(" ", "").removesuffix("B"))


def _text(lines: Iterable[str], now: BaselinePeak) -> str:
    found = list(lines)
    return "\n".join(found if len(found) > 1 else [*found, *peak_baseline.largest(now)])


def _completed(result: Mapping[str, Any], lines: Mapping[str, int], output: str) -> BaselinePeak:
    """The peak of a completed command, else raise PeakError."""
    outcome, measured = result["outcome"], result["measured"]
    if outcome == "outOfMemory":
        text = f"The command ran out of memory on the emulated {result['gpu']['name']}: {result['message']}"
        raise PeakError(_text([text], BaselinePeak.of(result, lines)))
    if outcome == "timeLimit":
        raise PeakError(f"The command's time was up after {result['seconds']:.0f} s; give a larger time_limit.")
    if outcome != "completed":
        tail = output.splitlines()[-_OUTPUT_SHOWN:]
        raise PeakError("\n".join([f"The command failed with exit code {result['exitCode']}:", *tail]))
    if measured is None:
        text = "The command ended without using the GPU, so it has no peak."
        raise PeakError("\n".join([text, *_others(result)]))
    return BaselinePeak.of(result, lines)


def _others(result: Mapping[str, Any]) -> list[str]:
    """Memory that is in none of the peaks."""
    from memtune_cli.views.emulate_page import others

    return list(others(result["otherProcesses"]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print all peaks, of passed and failed tests."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    peaks = [
        value
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if peaks:
        terminalreporter.write_sep("=", "peaks on the emulated GPU")
        for line in peaks:
            terminalreporter.write_line(str(line))
