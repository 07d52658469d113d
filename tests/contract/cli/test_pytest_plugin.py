"""The pytest plugin under pytester: baselines, limits, and machines that cannot emulate a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memtune.units import GIB
from memtune_cli import pytest_plugin
from memtune_cli.input.peak_baseline import BaselinePeak

pytest_plugins = ["pytester"]

_PLUGIN = ("-p", "memtune_cli.pytest_plugin")
_TEST = "def test_step(assert_peak):\n    assert_peak('train.py'{options})\n"


class Emulation:
    """Replaces `memtune emulate`: returns a peak and records the command."""

    def __init__(self) -> None:
        self.peak_gib = 8.0
        self.others: list[dict[str, int]] = []
        self.words: list[str] = []

    def __call__(self, _: object, words: list[str], options: list[str]) -> tuple[dict[str, Any], BaselinePeak]:
        self.words = [*options, "--", *words]
        size = int(self.peak_gib * GIB)
        peaks = dict.fromkeys(("allocated", "active", "reserved"), size)
        result = {"outcome": "completed", "otherProcesses": self.others}
        return result, BaselinePeak("h100-80gb", 1, "2.13.0", peaks, {"train.py, main: x": size})


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable entry points, whether or not MemTune is installed here."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> Emulation:
    emulation = Emulation()
    monkeypatch.setattr(pytest_plugin.AssertPeak, "_emulate", lambda *given: emulation(*given))
    return emulation


def test_a_baseline_is_written_committed_and_kept(pytester: pytest.Pytester, emulation: Emulation) -> None:
    pytester.makepyfile(test_memory=_TEST.format(options=""))
    missing = pytester.runpytest(*_PLUGIN)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*memtune-baseline.json has no peak of test_memory.py::test_step; run pytest --mem*"])

    pytester.runpytest(*_PLUGIN, "--memtune-write-baseline").assert_outcomes(passed=1)
    kept = json.loads((pytester.path / "memtune-baseline.json").read_text())
    assert kept["version"] == 1
    assert kept["peaks"]["test_memory.py::test_step"]["peakBytes"]["reserved"] == 8 * GIB

    emulation.peak_gib = 8.06
    passed = pytester.runpytest(*_PLUGIN)
    passed.assert_outcomes(passed=1)
    passed.stdout.fnmatch_lines(["test_memory.py::test_step: reserved 8.1 GiB, baseline 8.0 GiB"])

    emulation.peak_gib = 11
    failed = pytester.runpytest(*_PLUGIN)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(
        [
            ">*assert_peak('train.py')",
            "E*The reserved peak is 11.0 GiB, 3.0 GiB above its baseline of 8.0 GiB (tolerance 1.0%*",
            "E*+3.0 GiB  train.py, main: x",
        ]
    )
    pytester.makeini("[pytest]\nmemtune_tolerance = 0.5")
    pytester.runpytest(*_PLUGIN).assert_outcomes(passed=1)


def test_a_limit_needs_no_baseline(pytester: pytest.Pytester, emulation: Emulation) -> None:
    pytester.makepyfile(_TEST.format(options=", at_most='8 GiB', gpu='a100-40gb', ranks=8"))
    pytester.runpytest(*_PLUGIN).assert_outcomes(passed=1)
    limits = ["--gpu", "a100-40gb", "--time-limit", "600", "--ranks", "8"]
    assert emulation.words == [*limits, "--", sys.executable, "train.py"]
    emulation.peak_gib = 8.5
    failed = pytester.runpytest(*_PLUGIN)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(
        ["E*The reserved peak is 8.5 GiB, above the limit of 8.0 GiB.", "E*8.5 GiB  train.py, main: x"]
    )


def test_the_memory_of_other_processes_is_shown_beside_the_peak(
    pytester: pytest.Pytester, emulation: Emulation
) -> None:
    emulation.others = [
        {"gpu": 0, "processes": 1, "peakBytes": 3 * GIB, "togetherBytes": 11 * GIB, "upperBytes": 11 * GIB}
    ]
    pytester.makepyfile(test_memory=_TEST.format(options=", at_most='8 GiB'"))
    passed = pytester.runpytest(*_PLUGIN)
    passed.assert_outcomes(passed=1)
    passed.stdout.fnmatch_lines(
        ["test_memory.py::test_step: Processes that it started (1) took up to 3.00 GiB of GPU 0*"]
    )


def test_a_launcher_is_run_as_it_is(pytester: pytest.Pytester, emulation: Emulation) -> None:
    pytester.makepyfile(
        "def test_step(assert_peak):\n    assert_peak('torchrun --nproc-per-node 8 a.py \"b c\"', at_most='9Gi')\n"
    )
    pytester.runpytest(*_PLUGIN).assert_outcomes(passed=1)
    assert emulation.words[-4:] == ["--nproc-per-node", "8", "a.py", "b c"]


@pytest.mark.usefixtures("emulation")
def test_two_peaks_of_one_test_have_names(pytester: pytest.Pytester) -> None:
    second = "    assert_peak('eval.py'{name})\n"
    pytester.makepyfile(test_memory=_TEST.format(options="") + second.format(name=""))
    refused = pytester.runpytest(*_PLUGIN, "--memtune-write-baseline")
    refused.stdout.fnmatch_lines(["*give each call a name of its own*"])
    pytester.makepyfile(test_memory=_TEST.format(options="") + second.format(name=", name='eval'"))
    pytester.runpytest(*_PLUGIN, "--memtune-write-baseline").assert_outcomes(passed=1)
    kept = json.loads((pytester.path / "memtune-baseline.json").read_text())
    assert list(kept["peaks"]) == ["test_memory.py::test_step", "test_memory.py::test_step: eval"]


@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize("tolerance", ["1%", "-0.1", "1"])
def test_a_tolerance_is_a_share(pytester: pytest.Pytester, tolerance: str) -> None:
    pytester.makepyfile(_TEST.format(options=""))
    pytester.makeini(f"[pytest]\nmemtune_tolerance = {tolerance}")
    pytester.runpytest(*_PLUGIN).stdout.fnmatch_lines(["*write a share below 1, like 0.01 for 1%*"])


@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize(
    ("options", "sentence"), [("metric='peak'", "use one of"), ("at_most='lots'", "not a quantity")]
)
def test_an_impossible_peak_is_an_error(pytester: pytest.Pytester, options: str, sentence: str) -> None:
    pytester.makepyfile(_TEST.format(options=f", {options}"))
    pytester.runpytest(*_PLUGIN).stdout.fnmatch_lines([f"E*{sentence}*"])


def test_where_no_gpu_can_be_emulated_tests_are_skipped_or_fail_with_one_sentence(pytester: pytest.Pytester) -> None:
    # The Python of these tests has a CPU build of torch.
    pytester.makepyfile(_TEST.format(options=""))
    skipped = pytester.runpytest(*_PLUGIN, "-rs")
    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines(["SKIPPED*was not built for CUDA*"])
    failed = pytester.runpytest(*_PLUGIN, "--memtune-require")
    failed.assert_outcomes(failed=1)
    assert len(re.findall(r"^E ", failed.stdout.str(), re.MULTILINE)) == 1


def test_workers_of_xdist_do_not_write_a_baseline(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--dist', default='load')\n")
    refused = pytester.runpytest(*_PLUGIN, "--memtune-write-baseline")
    refused.stderr.fnmatch_lines(["ERROR: --memtune-write-baseline needs one process*"])
    pytester.runpytest(*_PLUGIN).stderr.no_fnmatch_line("*needs one process*")


def test_the_entry_point_is_the_plugin_and_imports_little(pytester: pytest.Pytester) -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'[project.entry-points.pytest11]\nmemtune = "{pytest_plugin.__name__}"\n' in project
    heavy = "{'torch', 'yaml', 'pydantic', 'kubernetes', 'kopf', 'memtune_runner', 'memtune_operator'}"
    code = f"import sys, memtune_cli.pytest_plugin; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"
    pytester.makepyfile("def test_nothing():\n    pass\n")
    unused = pytester.runpytest(*_PLUGIN)
    unused.assert_outcomes(passed=1)
    unused.stdout.no_fnmatch_line("*emulated GPU*")
