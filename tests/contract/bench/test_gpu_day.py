"""The commands of a GPU day: parts that fail, hang or run out of time, and the files that are kept."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest

from dev.gpu_day import collect, commands, prepare
from dev.gpu_day import outcomes as outcomes_module
from dev.gpu_day.commands import COMMANDS, run
from dev.gpu_day.main import main
from dev.gpu_day.outcomes import Part, runs_of
from dev.gpu_day.places import MEASURED, ROOT, variables
from dev.gpu_day.wheels import Wheel, unpack, version_of


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this checkout's wheels, nor processes of another test or rehearsal on this machine."""
    for name in ("WHEELS", "SITE"):
        monkeypatch.setattr(commands, name, tmp_path / "prepared" / name.lower())
    monkeypatch.setattr(outcomes_module, "_MARK", f"GPU_DAY_RESULTS_OF_{os.getpid()}")


def on_a_gpu(
    parts: tuple[Part, ...], seconds: float, results: Path, monkeypatch: pytest.MonkeyPatch, product: str = "NVIDIA A"
) -> int:
    """Return a command's exit code on a machine that claims to have this GPU."""
    says = Part("machine", ("-c", f"print({json.dumps({'product': product})!r})"), 30, tells=True)
    monkeypatch.setattr(commands, "_MACHINE", says)
    monkeypatch.setattr(commands, "COMMANDS", {"1": parts})
    monkeypatch.setattr(commands, "unpack", lambda _, site: (site, []))
    return run("1", results, seconds)


def outcomes(parts: tuple[Part, ...], seconds: float, results: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    code = on_a_gpu(parts, seconds, results, monkeypatch)
    machine, *others = runs(results)[-1]["parts"]
    assert machine["outcome"] == "ended well"
    return code, others


def runs(results: Path, name: str = "1") -> Any:
    found, unread = runs_of(results / f"{name}.jsonl")
    assert unread == 0
    return found


def test_a_part_that_fails_or_hangs_is_reported_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = (
        Part("fails", ("-c", "print('it is broken\\n'); raise SystemExit(3)"), 30),
        Part("hangs", ("-c", "import time; print('hangs', flush=True); time.sleep(60)"), 2),
        Part("tells", ("-c", "print('{\"bytes\": 7}'); print('the end')"), 30, tells=True),
    )
    code, found = outcomes(parts, 60, tmp_path / "new", monkeypatch)
    assert code == 1
    assert [each["outcome"] for each in found] == ["failed with 3", "cut off after 2 s", "ended well"]
    assert [each["told"] for each in found] == [None, None, {"bytes": 7}]
    assert "gpu-day 1: fails: failed with 3: it is broken\n" in capsys.readouterr().out
    assert "== hangs: -c" in (tmp_path / "new" / "1.log").read_text()
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == ["1.jsonl", "1.log"]


@pytest.fixture
def _in_the_background() -> Iterator[None]:
    """A shell has what runs there ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_in_the_background")
def test_a_part_that_is_cut_off_keeps_its_results_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = tmp_path / "test_slow.py"
    tests.write_text(
        "import subprocess\n"
        "def test_fails(): assert 'this' == 'that'\n"
        "def test_hangs():\n"
        "    subprocess.Popen(['sleep', '988'], start_new_session=True)\n"  # as a run of memtune
        f"    subprocess.run(['sh', '-c', 'trap \"\" INT; touch {tmp_path}/hangs; sleep 987'])\n"
    )

    class CutOff(subprocess.Popen[bytes]):
        """At its limit when it hangs, and with all the time that it takes to end, however busy the machine is."""

        def wait(self, timeout: float | None = None) -> int:
            is_first, self.is_late = not hasattr(self, "is_late"), True
            if str(tests) not in list(cast(Sequence[str], self.args)) or not is_first:
                return super().wait(120)
            deadline = time.monotonic() + 120
            while not (tmp_path / "hangs").exists():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            raise subprocess.TimeoutExpired(self.args, 32)

    monkeypatch.setattr("dev.gpu_day.outcomes.subprocess.Popen", CutOff)
    words = (*(each for each in commands._PYTEST), "-c", os.devnull, str(tests))
    _, (found,) = outcomes((Part("tests", words, 32),), 90, tmp_path / "results", monkeypatch)
    assert found["outcome"] == "cut off after 32 s"
    log = (tmp_path / "results" / "1.log").read_text()
    assert "assert 'this' == 'that'" in log
    assert "test_slow.py::test_fails FAILED" in log
    assert _ends("987")
    assert _ends("988")


@pytest.mark.parametrize("next_results", ["results", "others"])
def test_processes_of_a_command_that_was_killed_are_ended_before_anything_is_measured(
    next_results: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their memory would count as measured."""
    part = Part("hangs", ("-c", "import subprocess; subprocess.run(['sleep', '989'], start_new_session=True)"), 30)
    killed = multiprocessing.get_context("fork").Process(
        target=on_a_gpu, args=((part,), 60, tmp_path / "results", monkeypatch)
    )
    killed.start()
    _wait_for("989")
    killed.kill()
    killed.join()
    assert _sleeps("989")
    assert on_a_gpu((Part("next", ("-c", ""), 30),), 60, tmp_path / next_results, monkeypatch) == 0
    assert _ends("989")


def test_a_command_that_is_terminated_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "day.py"
    script.write_text(
        "from dev.gpu_day import commands, outcomes\n"
        "from dev.gpu_day.main import main\n"
        "from dev.gpu_day.outcomes import Part\n"
        f"outcomes._MARK = {outcomes_module._MARK!r}\n"
        "commands.unpack = lambda _, site: (site, [])\n"
        "commands._MACHINE = Part('machine', ('-c', 'import subprocess; subprocess.run([\"sleep\", \"990\"])'), 30)\n"
        f"main(['1', '--results', {str(tmp_path / 'results')!r}])\n"
    )
    day = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    _wait_for("990")
    day.terminate()
    assert day.wait(30) == 143
    assert _ends("990")


def test_a_command_whose_output_nobody_reads_goes_on(tmp_path: Path) -> None:
    """A connection was lost, say."""
    script = tmp_path / "day.py"
    script.write_text(
        "from dev.gpu_day import commands, outcomes\n"
        "from dev.gpu_day.outcomes import Part\n"
        f"outcomes._MARK = {outcomes_module._MARK!r}\n"
        "commands.unpack = lambda _, site: (site, ['no wheel'])\n"
        "commands._MACHINE, *parts = (Part(each, ('-c', ''), 30) for each in ('machine', 'first', 'second'))\n"
        "commands.COMMANDS = {'1': tuple(parts)}\n"
        f"raise SystemExit(commands.run('1', commands.Path({str(tmp_path / 'results')!r}), 90))\n"
    )
    there, here = os.pipe()
    os.close(there)
    words, environment = [sys.executable, str(script)], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, stdout=here, stderr=subprocess.PIPE, text=True, check=False)
    os.close(here)
    assert (done.returncode, done.stderr) == (0, "")
    assert [each["name"] for each in runs(tmp_path / "results")[0]["parts"]] == ["machine", "first", "second"]


def test_a_process_that_cannot_be_ended_is_waited_for_until_its_limit_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that hangs in the driver."""
    waited: list[float] = []

    class Hanging(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            waited.append(timeout or 0.0)
            if len(waited) == 3:
                super().wait(60)
            raise subprocess.TimeoutExpired(self.args, waited[-1])

    monkeypatch.setattr("dev.gpu_day.outcomes.subprocess.Popen", Hanging)
    with (tmp_path / "log").open("wb") as file:
        words, marked = ["sleep", "991"], {**os.environ, outcomes_module._MARK: str(tmp_path)}
        assert outcomes_module._ended(words, marked, file, 120) is None
    assert waited == pytest.approx([112, 6, 2])


def _wait_for(seconds: str) -> None:
    deadline = time.monotonic() + 60
    while not _sleeps(seconds):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _ends(seconds: str) -> bool:
    """Whether no process sleeps so long, at the latest when a killed one is reaped."""
    deadline = time.monotonic() + 60
    while _sleeps(seconds) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not _sleeps(seconds)


def _sleeps(seconds: str) -> bool:
    words = f"sleep\0{seconds}".encode()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if words in each.read_bytes():
                return True
    return False


def test_why_tests_were_skipped_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "test_some.py"
    skips = ["@pytest.mark.parametrize('at', [1, 2])", "@pytest.mark.skip(reason='one GPU: no others')"]
    lines = [
        "import pytest",
        *skips,
        "def test_a(at): pass",
        "def test_b(): pytest.skip('no fp8')",
        "def test_c(): pass",
    ]
    file.write_text("\n".join(lines))
    words = (*commands._PYTEST, "-c", os.devnull, str(file))
    _, (found,) = outcomes((Part("tests", words, 60),), 60, tmp_path / "results", monkeypatch)
    assert (found["skipped"], found["reasons"]) == (3, {"one GPU: no others": 2, "no fp8": 1})


def test_tests_that_passed_count_where_pytest_was_cut_off_before_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(
        "import os, pytest\n"
        "def test_a(): pass\n"
        "@pytest.mark.skip(reason='no fp8')\n"
        "def test_b(): pass\n"
        "def test_c(): os.kill(os.getpid(), 9)\n"
    )
    words = (*commands._PYTEST, "-c", os.devnull, str(file))
    _, (found,) = outcomes((Part("tests", words, 60),), 60, tmp_path / "results", monkeypatch)
    assert (found["outcome"], found["passed"], found["skipped"]) == ("failed with -9", 1, 1)


def test_results_may_lie_in_another_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    words = (*commands._TESTS, "--collect-only", "tests/gpu/test_gpu_memory.py")
    _, (found,) = outcomes((Part("tests", words, 60),), 90, tmp_path / "results", monkeypatch)
    assert found["outcome"] == "ran no test", (tmp_path / "results" / "1.log").read_text()


def test_parts_without_time_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = outcomes((Part("late", ("-c", ""), 30),), 5.01, tmp_path, monkeypatch)
    assert (code, found) == (1, [{"name": "late", "outcome": "no time was left"}])


def test_a_part_that_hangs_leaves_time_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = Part("hangs", ("-c", "import time; time.sleep(60)"), 300)
    _, found = outcomes((hangs, Part("late", ("-c", ""), 300)), 24, tmp_path, monkeypatch)
    cut_off, late = (each["outcome"] for each in found)
    assert (re.sub(r"\d+", "N", cut_off), late) == ("cut off after N s", "ended well")


def test_a_part_leaves_the_expected_time_to_the_others() -> None:
    parts = [Part("first", (), 150, expected=60), *(Part(name, (), 185, expected=100) for name in "abcd")]
    # With 8 seconds for each to end in, when it is interrupted.
    assert commands._limit(parts, 592) == 150
    assert commands._limit(parts, 540) == 108
    assert commands._limit(parts, 500) == 68
    assert commands._limit(parts, 250) == 34, "its share, where there is half of what is expected"
    assert commands._limit(parts[4:], 400) == 185


@pytest.mark.parametrize("expected", [2.0, 15.0, 24.0, 60.0])
def test_a_part_is_not_interrupted_before_its_expected_time(
    expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Process(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            waited.append(timeout or 0.0)
            return super().wait(60)

    monkeypatch.setattr("dev.gpu_day.outcomes.subprocess.Popen", Process)
    part = Part("any", (), 300, expected=expected)
    with (tmp_path / "log").open("wb") as file:
        words, marked = [sys.executable, "-c", ""], {**os.environ, outcomes_module._MARK: str(tmp_path)}
        assert outcomes_module._ended(words, marked, file, part.kept_seconds) == 0
    assert waited[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tests", "outcome", "counts"),
    [
        ("@pytest.mark.skip\ndef test_a(): pass", "ran no test", (0, 1)),
        ("@pytest.mark.skip\ndef test_a(): pass\ndef test_b(): pass", "ended well", (1, 1)),
        ("", "ran no test", (0, 0)),
        ("def test_a(): assert False\ndef test_b(): pass", "failed with 1", (1, 0)),
    ],
)
def test_a_part_in_which_no_test_passed_did_not_end_well(
    tests: str, outcome: str, counts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(f"import pytest\n{tests}\n")
    part = Part("tests", (*commands._PYTEST, "-c", os.devnull, str(file)), 60)
    code, (found,) = outcomes((part,), 60, tmp_path / "results", monkeypatch)
    assert (code, found["outcome"]) == (int(outcome != "ended well"), outcome)
    assert (found.get("passed"), found.get("skipped")) == counts


def test_without_a_gpu_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests that are skipped for lack of a GPU would count as passed."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(commands, "SITE", site)
    assert run("1", tmp_path, 60) == 2
    assert not site.exists(), "it would travel to the machine with the GPU"
    (machine,) = runs(tmp_path)[0]["parts"]
    assert (machine["name"], machine["outcome"]) == ("machine", "failed with 2")
    assert "failed with 2: a GPU day needs a CUDA GPU, and there is none" in capsys.readouterr().out


def test_nothing_starts_where_torch_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudnn.so.9: cannot open shared object file')\n")
    monkeypatch.setattr(commands, "variables", lambda site: {**variables(site), "PYTHONPATH": _before(tmp_path, site)})
    assert run("1", tmp_path / "results", 60) == 2
    sentence = "failed with 2: a GPU day needs a CUDA GPU, and torch cannot be imported: libcudnn.so.9: cannot open"
    assert sentence in capsys.readouterr().out


def _before(directory: Path, site: Path) -> str:
    return os.pathsep.join([str(directory), variables(site)["PYTHONPATH"]])


def test_without_torch_nothing_starts(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python, script = str(tmp_path / "bare" / "bin" / "python"), str(ROOT / "dev" / "gpu-day")
    words = [python, script, "1", "--results", str(tmp_path / "results")]
    done = subprocess.run(words, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    (sentence,) = done.stderr.splitlines()
    assert sentence == (
        f"gpu-day: command 1 needs torch, which neither Python {platform.python_version()} at {python} nor "
        "build/gpu-day has; name another Python, as in PYTHON dev/gpu-day 1"
    )
    assert not (tmp_path / "results").exists()


def _information(packages: Path, name: str, *lines: str) -> None:
    """An installed package, as metadata tells of it."""
    directory = packages / f"{name.replace('-', '_')}-1.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text("\n".join([f"Name: {name}", *lines, ""]))


@pytest.mark.parametrize(
    ("command", "without", "left_out"),
    [
        ("1", {"torch"}, None),
        ("1", {"pytest"}, {"counters and out-of-memory": "needs pytest"}),
        ("1", {"deepspeed", "pydantic"}, {}),
        ("2", {"torch"}, None),
        ("2", {"deepspeed", "pytest"}, {}),
        ("3", {"pluggy"}, None),
        ("3", {"optuna", "transformers"}, {"a job from its first probe to its end": "needs optuna"}),
    ],
)
def test_a_part_that_lacks_a_package_is_left_out_and_a_command_refused_whose_parts_all_lack_it(
    command: str,
    without: set[str],
    left_out: dict[str, str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    packages = tmp_path / "packages"
    for each in {*commands._OF_A_JOB, *commands._BEFORE_3_11} - without:
        _information(packages, each, "Version: 1")
    parts = tuple(each._replace(words=("-c", "print('{}')")) for each in COMMANDS[command])
    monkeypatch.setattr(commands, "unpack", lambda *_: (packages, []))
    monkeypatch.setattr(commands, "_MACHINE", Part("machine", ("-c", ""), 30))
    monkeypatch.setattr(commands, "COMMANDS", {command: parts})
    monkeypatch.setattr(sys, "path", [])
    code = run(command, tmp_path / "results", 540)
    if left_out is None:
        (sentence,) = capsys.readouterr().err.splitlines()
        assert code == 2
        assert sentence.startswith(f"gpu-day: command {command} needs {min(without)}, which neither Python 3.")
        bring = "; run dev/gpu-day prepare where there is a network and bring build/gpu-day along, or name another"
        assert (bring in sentence) == ("torch" not in without)
        assert not (tmp_path / "results").exists()
    else:
        assert code == int(bool(left_out))
        _, *others = runs(tmp_path / "results", command)[0]["parts"]
        assert {each["name"]: each["outcome"] for each in others} == {
            part.name: left_out.get(part.name, "ended well") for part in parts
        }


def test_before_python_3_11_pytest_needs_two_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [])
    part = Part("tests", (), 30, needs=("pytest",))
    for version, expected in {(3, 11, 0): ["pytest"], (3, 10, 9): ["pytest", "exceptiongroup", "tomli"]}.items():
        monkeypatch.setattr(sys, "version_info", version)
        assert commands._missing(part, tmp_path) == expected


def test_a_package_whose_files_are_broken_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gpu_day_broken-1.dist-info").mkdir()
    _information(tmp_path, "gpu-day-unnumbered")
    for name in ("gpu-day-broken", "gpu-day-unnumbered"):
        assert version_of(name, [str(tmp_path)]) is None
        assert commands._missing(Part("any", (), 1, needs=(name,)), tmp_path) == [name]
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "wheels").mkdir()
    _wheel(tmp_path / "wheels", "gpu_day_broken-1-py3-none-any.whl")
    site, refused = unpack(tmp_path / "wheels", tmp_path / "site")
    assert ([each.name for each in site.iterdir()], refused) == (["gpu_day_broken.py"], [])


def test_wheels_that_cannot_be_read_are_refused_and_the_others_unpacked(tmp_path: Path) -> None:
    _wheel(tmp_path, "gpu_day_whole-1-py3-none-any.whl")
    whole = (tmp_path / "gpu_day_whole-1-py3-none-any.whl").read_bytes()
    (tmp_path / "gpu_day_cut-1-py3-none-any.whl").write_bytes(whole[:-9])
    (tmp_path / "gpu_day_odd-1-py3-none-any.whl").write_bytes(whole.replace(b"whole-1-py3", b"whole-2-py3", 1))
    (tmp_path / "._x.whl").touch()
    site, refused = unpack(tmp_path, tmp_path / "site")
    assert [each.name for each in site.iterdir()] == ["gpu_day_whole.py"]
    assert refused == [
        "._x.whl is not named as a wheel is, and is left out: remove it",
        "gpu_day_cut-1-py3-none-any.whl cannot be read, and is left out: File is not a zip file; bring it along anew",
        "gpu_day_odd-1-py3-none-any.whl cannot be read, and is left out: gpu_day_whole.py is broken; bring it along "
        "anew",
    ]


_OF_NO_PYTHON = "cp399-cp399-manylinux2014_x86_64"


@pytest.mark.parametrize(
    ("core_tags", "here", "unpacked", "sentence"),
    [
        ("py3-none-any", {}, ["gpu_day_core.py", "gpu_day_top.py"], None),
        ("py3-none-any", {"top": "1", "core": "1"}, ["gpu_day_core.py", "gpu_day_top.py"], None),
        (
            _OF_NO_PYTHON,
            {"top": "1", "core": "1"},
            [],
            "gpu_day_top 2 is left out, and 1 stays in use: it needs gpu_day_core 2, and 1 is here",
        ),
        (
            _OF_NO_PYTHON,
            {},
            [],
            "gpu_day_top 2 is left out, and it is missing: it needs gpu_day_core 2, and none is here",
        ),
        (
            "py3-none-any",
            {"top": "3", "core": "1"},
            [],
            "gpu_day_core 2 is left out, and 1 stays in use: gpu_day_top 3, which is here, needs 1",
        ),
    ],
)
def test_two_packages_that_pin_each_other_are_unpacked_together_or_not_at_all(
    core_tags: str,
    here: dict[str, str],
    unpacked: list[str],
    sentence: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As pydantic pins its core."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    _wheel(wheels, "gpu_day_top-2-py3-none-any.whl", "Requires-Dist: gpu-day-core==2", "Requires-Dist: other>=1")
    _wheel(wheels, f"gpu_day_core-2-{core_tags}.whl")
    for name, version in here.items():
        pin = [f"Requires-Dist: gpu-day-core (=={here['core']})"] if name == "top" else []
        _information(tmp_path / "here", f"gpu-day-{name}", f"Version: {version}", *pin)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "here")])
    site, refused = unpack(wheels, tmp_path / "site")
    assert sorted(each.name for each in site.glob("*.py")) == unpacked
    assert [each for each in refused if "left out" in each] == ([sentence] if sentence else [])


def test_a_preparation_promises_nothing_that_another_machine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wheel(tmp_path, "gpu_day_other-1.5-cp312-cp312-manylinux2014_x86_64.whl")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    _, (sentence,) = unpack(tmp_path, tmp_path / "site")
    assert sentence.endswith("on aarch64: install it there")


def test_a_python_that_is_too_old_is_refused_and_a_newer_one_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert run("1", tmp_path / "results", 60) == 2
    assert "needs Python 3.10 to 3.14 with a CUDA build of torch, and this is" in capsys.readouterr().err
    _wheel(tmp_path, "gpu_day_other-1.5-cp312-cp312-manylinux2014_x86_64.whl")
    _, (sentence,) = unpack(tmp_path, tmp_path / "site")
    assert sentence.endswith("use Python 3.10 to 3.14")


def test_wheels_for_an_unsupported_python_are_not_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["prepare", "--gpu", "h100-80gb", "--python", "3.9"])
    assert "invalid choice: '3.9'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "models", "said"),
    [
        ("h200", [], "gpu-day: GPU 'h200' is unknown; use one of "),
        ("h200-141gb", ["0.1B", "llama"], "gpu-day: no pair has the model llama; use 0.1B, 0.5B, "),
    ],
)
def test_an_unknown_gpu_or_model_leaves_the_wheels_as_they_are(
    gpu: str,
    models: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("PREPARED", "WHEELS", "SITE", "PREDICTIONS", "EMULATED", "EMULATED_PYTHON"):
        monkeypatch.setattr(prepare, name, tmp_path / name.lower())
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "some.whl").touch()
    assert prepare.prepare(["3.12"], gpu, models) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(said)
    assert [each.name for each in tmp_path.rglob("*.whl")] == ["some.whl"]


@pytest.mark.parametrize(("mib", "code"), [(1, 0), (64, 1)])
def test_files_too_large_to_carry_along_are_reported(
    mib: int, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wheel counts beside the checkout, which is 64 MiB with it at most."""
    for name in ("PREPARED", "WHEELS", "SITE", "PREDICTIONS", "EMULATED", "EMULATED_PYTHON"):
        monkeypatch.setattr(prepare, name, tmp_path / "prepared" / name.lower())
    monkeypatch.setattr(prepare, "PREPARED", tmp_path / "prepared")
    monkeypatch.setattr(prepare, "predictions", lambda *_: {})
    monkeypatch.setattr(prepare, "_fetch", lambda _, into: _sparse(into / "some.whl", mib << 20))
    assert prepare.prepare(["3.12"], "h200-141gb", []) == code
    said = capsys.readouterr()
    assert "is ready; with the checkout it is " in said.out
    too_large = "gpu-day: that is more than 64 MiB; remove what git does not know\n"
    without_emulated = "gpu-day: the table will have no emulated peaks: make env-emulated was not run here\n"
    assert said.err == without_emulated + too_large * code


def _emptily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepare without an index or an emulated GPU; where it was prepared before."""
    prepared = tmp_path / "prepared"
    for name in ("WHEELS", "SITE", "PREDICTIONS", "EMULATED", "EMULATED_PYTHON"):
        monkeypatch.setattr(prepare, name, prepared / name.lower())
    monkeypatch.setattr(prepare, "PREPARED", prepared)
    monkeypatch.setattr(prepare, "predictions", lambda *_: {})
    monkeypatch.setattr(prepare, "_commit", lambda: "0" * 40)
    monkeypatch.setattr(prepare, "_fetch", lambda _, into: (into / "new.whl").touch())
    for name in ("wheels/old.whl", "site/old.py", "emulated/pairs.jsonl"):
        (prepared / name).parent.mkdir(parents=True)
        (prepared / name).touch()
    return prepared


def _files(prepared: Path) -> set[str]:
    return {str(each.relative_to(prepared)) for each in prepared.rglob("*") if each.is_file()} - {"predictions"}


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ({"gpu": "h200-141gb", "commit": "0" * 40}, {"emulated/pairs.jsonl"}),
        ({"gpu": "h100-80gb", "commit": "0" * 40}, set()),
        ({"gpu": "h200-141gb", "commit": "1" * 40}, set()),
        (None, set()),
    ],
)
def test_peaks_of_the_same_gpu_and_commit_are_kept(
    before: Any, kept: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = _emptily(tmp_path, monkeypatch)
    (prepared / "predictions").write_text(json.dumps(before))
    assert prepare.prepare(["3.12"], "h200-141gb", []) == 0
    assert _files(prepared) == {"wheels/new.whl", *kept}


def test_wheels_that_cannot_be_fetched_leave_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = _emptily(tmp_path, monkeypatch)

    def fails(_: object, into: Path) -> None:
        (into / "half.whl").touch()
        raise subprocess.CalledProcessError(1, ["pip"])

    monkeypatch.setattr(prepare, "_fetch", fails)
    assert prepare.prepare(["3.12"], "h200-141gb", []) == 1
    assert _files(prepared) == {"wheels/old.whl", "site/old.py", "emulated/pairs.jsonl"}
    assert "what was prepared before is unchanged" in capsys.readouterr().err


def test_without_emulated_peaks_the_rest_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _emptily(tmp_path, monkeypatch)
    monkeypatch.setattr(prepare, "EMULATED_PYTHON", sys.executable)
    monkeypatch.setattr(prepare, "development_python", lambda: "false")
    assert prepare.prepare(["3.12"], "h200-141gb", []) == 1, "nobody should learn it when the day is over"
    output = capsys.readouterr()
    assert "gpu-day: emulated peaks are missing: bench/gpu_emulated.py ended with 1\n" in output.err
    assert "is ready; with the checkout it is " in output.out


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_parts_of_a_command_are_expected_to_end_in_its_time_and_none_is_starved(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = commands.times(name, 540)
    assert sum(each.expected for each in found) <= 540
    assert sum(each.least for each in found) <= 540
    for each in found:
        assert 0 < each.expected <= each.least <= each.limit, each
    monkeypatch.setattr(prepare, "prepare", lambda *_: 0)
    assert main(["prepare", "--gpu", "h100-80gb"]) == 0
    table = capsys.readouterr().out
    for each in found:
        assert f"{name}  {each.name:47}{each.expected:10.0f}{each.limit:10.0f}{each.least:24.0f}\n" in table


@pytest.mark.parametrize(("given", "first"), [(None, "0"), ("GPU-5e,GPU-6f", "GPU-5e")])
def test_a_part_uses_the_first_of_several_gpus_unless_it_is_for_several(
    given: str | None,
    first: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    says = (
        "import json, os; print(json.dumps({'gpus': int(os.sys.argv[1]), 'found': os.getenv('CUDA_VISIBLE_DEVICES')}))"
    )
    one, several = Part("one", ("-c", says, "0"), 30, tells=True), Part("several", ("-c", says, "0"), 30, tells=True)
    monkeypatch.setattr(commands, "COMMANDS", {"1": (one, several._replace(several=True))})
    monkeypatch.setattr(commands, "unpack", lambda _, site: (site, []))
    for gpus, expected in {"1": [given, given, given], "2": [given, first, given]}.items():
        monkeypatch.setattr(commands, "_MACHINE", Part("machine", ("-c", says, gpus), 30, tells=True))
        assert run("1", tmp_path, 90) == 0
        assert [each["told"]["found"] for each in runs(tmp_path)[-1]["parts"]] == expected
    sentence = "gpu-day 1: there are 2 GPUs; a part finds the first alone, unless it is for several\n"
    assert capsys.readouterr().out.count(sentence) == 1
    assert [part.name for parts in COMMANDS.values() for part in parts if part.several] == ["engine, resume"]


def test_a_machine_that_does_not_answer_in_time_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Part("machine", ("-c", "import time; print('{', flush=True); time.sleep(60)"), 1, tells=True)
    monkeypatch.setattr(commands, "_MACHINE", slow)
    monkeypatch.setattr(commands, "COMMANDS", {"1": (Part("next", ("-c", ""), 30),)})
    monkeypatch.setattr(commands, "unpack", lambda _, site: (site, []))
    assert run("1", tmp_path, 60) == 1
    assert [each["outcome"] for each in runs(tmp_path)[0]["parts"]] == ["cut off after 1 s", "ended well"]


@pytest.mark.parametrize("written", ["", '{"product": "NVIDIA A"'])
def test_pairs_that_were_cut_off_as_they_were_written_stop_nothing(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.jsonl").write_text(written)
    assert on_a_gpu((Part("next", ("-c", ""), 30),), 60, tmp_path, monkeypatch) == 0


def test_results_that_cannot_be_written_are_reported_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run("1", tmp_path / "file" / "results", 60) == 2
    assert "name another directory by --results" in capsys.readouterr().err


def test_a_full_disk_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.log").symlink_to("/dev/full")
    assert on_a_gpu((Part("next", ("-c", ""), 30),), 60, tmp_path, monkeypatch) == 2
    assert "results cannot be written: [Errno 28] No space left on device" in capsys.readouterr().err


def test_a_second_run_writes_nothing_over_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second lease may have another driver, or no GPU at all."""
    constants = Part("constants", ("-c", "print('{\"driver\": 1}')"), 30, tells=True)
    outcomes((constants,), 60, tmp_path, monkeypatch)
    (first,) = runs(tmp_path)
    outcomes((constants._replace(words=("-c", "print('{\"driver\": 2}')")),), 60, tmp_path, monkeypatch)
    monkeypatch.setattr(commands, "_MACHINE", Part("machine", ("-c", "print('no GPU'); exit(2)"), 30, tells=True))
    assert run("1", tmp_path, 60) == 2
    assert runs(tmp_path)[0] == first
    told = [[each["told"] for each in one["parts"]] for one in runs(tmp_path)]
    assert told == [[{"product": "NVIDIA A"}, {"driver": 1}], [{"product": "NVIDIA A"}, {"driver": 2}], [None]]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["1.jsonl", "1.log"]


def test_results_written_before_and_after_a_kill_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1.jsonl").write_text(
        '{"rehearsal": false}\n{"name": "a", "outcome": "ended well"}\n{"name": "b", "out'
    )
    assert on_a_gpu((Part("next", ("-c", ""), 30),), 60, tmp_path, monkeypatch) == 0
    found, unread = runs_of(tmp_path / "1.jsonl")
    assert [[part["name"] for part in each["parts"]] for each in found] == [["a"], ["machine", "next"]]
    assert unread == 1


_OPENED = """
import json, os, sys, zipfile
from pathlib import Path

results = Path(sys.argv[1])
opened = set()

def notice(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        path = Path(os.path.abspath(os.fsdecode(arguments[0])))
        if path.is_relative_to(results):
            opened.add(str(path.relative_to(results)))
    elif event in ("os.rename", "os.link", "os.symlink") and Path(arguments[1]).is_relative_to(results):
        opened.add(event)

results.mkdir()
sys.addaudithook(notice)
from dev.gpu_day import commands, outcomes
from dev.gpu_day.outcomes import Part
from gpu_pairs import PAIRS
from gpu_results import Results
from gpu_score import Result
from gpu_table import Machine

outcomes._MARK = f"GPU_DAY_RESULTS_OF_{os.getpid()}"
commands.unpack = lambda _, site: (site, [])
for name in commands.COMMANDS:
    commands.COMMANDS[name] = (Part("one", ("-c", "print(1)"), 30), Part("fails", ("-c", "exit(1)"), 30))
for name, gpu in [(name, gpu) for gpu in "ABA" for name in commands.COMMANDS]:
    says = "print(" + repr(json.dumps({"product": gpu})) + ")"
    commands._MACHINE = Part("machine", ("-c", says), 30, tells=True)
    commands.run(name, results, 60)
    kept = Results(results)
    kept.begin(Machine(gpu, 1, "1", "1", "1", "1", "1"))
    kept.add(Result(PAIRS[0]))
    kept.add_fixture(Path(sys.argv[2]))
print(json.dumps(sorted(opened)))
"""


def test_a_command_killed_at_any_moment_leaves_at_most_eight_files(tmp_path: Path) -> None:
    """No other file is ever opened for writing, and none is renamed, whatever GPUs it runs on."""
    (tmp_path / "fixture").touch()
    words = [sys.executable, "-c", _OPENED, str(tmp_path / "results"), str(tmp_path / "fixture")]
    done = subprocess.run(words, cwd=ROOT, env=variables(), capture_output=True, text=True, check=True)
    opened = json.loads(done.stdout.splitlines()[-1])
    assert opened == sorted(
        [f"{name}.{kind}" for name in "123" for kind in ("jsonl", "log")] + ["pairs.jsonl", "fixtures.jsonl"]
    )
    assert sorted(each.name for each in (tmp_path / "results").iterdir()) == opened
    # Parts write there by bench/gpu_results.py alone: in tests, only a page of what no command runs is another file.
    given = {word for parts in COMMANDS.values() for part in parts for word in part.words if "{results}" in part.words}
    assert {word for word in given if word.endswith(".py")} == {
        "bench/gpu_truth.py",
        *(f"tests/gpu/test_gpu_{each}.py" for each in ("memory", "run", "scripts", "engine", "offload", "plans")),
    }


@pytest.mark.parametrize(
    ("name", "suiting"),
    [
        ("a-1-py3-none-any.whl", ["3.10", "3.12", "3.14"]),
        ("a-1-py2.py3-none-any.whl", ["3.10", "3.12", "3.14"]),
        ("a-1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", ["3.12"]),
        ("a-1-cp312-cp312-manylinux_2_17_aarch64.whl", []),
        ("a-1-cp312-abi3-manylinux_2_12_x86_64.whl", ["3.12", "3.14"]),
        ("a-1-1build-py3-none-manylinux2014_x86_64.whl", ["3.10", "3.12", "3.14"]),
    ],
)
def test_which_wheel_suits_which_python(name: str, suiting: list[str]) -> None:
    wheel = Wheel.of(Path(name))
    assert [f"3.{minor}" for minor in (10, 12, 14) if wheel.suits((3, minor), "x86_64")] == suiting


def _wheel(directory: Path, name: str, *required: str) -> None:
    package, version, *_ = name.split("-")
    with zipfile.ZipFile(directory / name, "w") as archive:
        archive.writestr(f"{package}.py", name)
        if required:
            archive.writestr(f"{package}-{version}.dist-info/METADATA", "\n".join([f"Name: {package}", *required]))


def test_wheels_of_missing_or_older_packages_are_unpacked(tmp_path: Path) -> None:
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    for each in (
        f"gpu_day_binary-1-{own}-{own}-manylinux2014_x86_64.whl",
        "gpu_day_binary-1-cp399-cp399-manylinux2014_x86_64.whl",
        "gpu_day_other-1.5-cp399-cp399-manylinux2014_x86_64.whl",
        "pytest-9999-py3-none-any.whl",
        "pluggy-0.1-py3-none-any.whl",
    ):
        _wheel(tmp_path, each)
    for before in ("new", "new/site", "new/site/of_another_python"):
        (tmp_path / before).mkdir()
    site, refused = unpack(tmp_path, tmp_path / "new" / "site")
    assert sorted(each.name for each in site.iterdir()) == ["gpu_day_binary.py", "pytest.py"]
    assert own in (site / "gpu_day_binary.py").read_text()
    (sentence,) = refused
    assert sentence.startswith("gpu_day_other 1.5 is not here, and no wheel of it is for Python 3.")
    # A checkout that is not writable.
    (tmp_path / "file").touch()
    elsewhere, _ = unpack(tmp_path, tmp_path / "file" / "site")
    assert sorted(each.name for each in elsewhere.iterdir()) == ["gpu_day_binary.py", "pytest.py"]


def test_missing_wheels_are_reported(tmp_path: Path) -> None:
    _, (sentence,) = unpack(tmp_path / "wheels", tmp_path / "site")
    assert sentence == (
        f"there are no wheels in {tmp_path}/wheels: what this Python lacks is missing; run dev/gpu-day prepare where "
        "there is a network, and bring build/gpu-day along"
    )


def test_every_package_that_is_carried_along_is_pinned() -> None:
    names = f"{prepare._OF_PAIRS} {prepare._OF_TESTS} {prepare._OF_JOBS}".split()
    assert len(names) == len(set(names)) > 20
    assert [name for name in names if not prepare._pinned(name).startswith(f"{name}==")] == []
    with pytest.raises(ValueError, match=r"none of tools/dev\.lock and tools/eight-bit\.lock has left-pad"):
        prepare._pinned("left-pad")


def _published(index: Path, pin: str, tags: str) -> str:
    """A wheel as an index has it, and its name."""
    name, _, version = pin.replace("-", "_").partition("==")
    made = f"{name}-{version}-{tags}.whl"
    with zipfile.ZipFile(index / made, "w") as archive:
        information = f"{name}-{version}.dist-info"
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{information}/WHEEL", f"Wheel-Version: 1.0\nTag: {tags}\n")
        archive.writestr(f"{information}/RECORD", "")
    return made


def test_wheels_for_each_python_are_fetched_and_deepspeed_is_built_without_its_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an index in a directory, by the same calls of pip."""
    index, wheels = tmp_path / "index", tmp_path / "wheels"
    index.mkdir()
    deepspeed = prepare._pinned("deepspeed").replace("==", "-")
    (tmp_path / "setup.py").write_text(
        "import os\nfrom setuptools import setup\nassert os.environ['DS_BUILD_OPS'] == '0'\n"
        f"setup(name='deepspeed', version={deepspeed.partition('-')[2]!r}, py_modules=[])\n"
    )
    with tarfile.open(index / f"{deepspeed}.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "setup.py", f"{deepspeed}/setup.py")
    expected = {f"{deepspeed}-py3-none-any.whl"}
    pure = set(f"{prepare._OF_PAIRS} {prepare._OF_TESTS} {prepare._OF_JOBS}".split()) - {
        "deepspeed",
        *prepare._BINARY.split(),
    }
    for pin in (*map(prepare._pinned, pure), *prepare._BEFORE_3_11):
        expected.add(_published(index, pin, "py3-none-any"))
    for name in prepare._BINARY.split():
        pin = prepare._pinned(name)
        expected |= {_published(index, pin, f"cp{each}-cp{each}-manylinux_2_17_x86_64") for each in (311, 313)}
        _published(index, pin, "cp312-cp312-manylinux_2_17_x86_64")
        _published(index, pin, "cp311-cp311-macosx_11_0_arm64")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    prepare._fetch(["3.11", "3.13"], wheels)
    assert {each.name for each in wheels.iterdir()} == expected
    (index / f"{deepspeed}.tar.gz").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        prepare._fetch(["3.11"], wheels)


def _repacked(index: Path, name: str) -> None:
    """A real wheel of what is installed here, as an index has it."""
    installed = metadata.distribution(name)
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tags = f"{own}-{own}-manylinux_2_17_x86_64" if name in prepare._BINARY.split() else "py3-none-any"
    with zipfile.ZipFile(index / f"{name.replace('-', '_')}-{installed.version}-{tags}.whl", "w") as archive:
        for each in installed.files or ():
            if ".." not in each.parts and each.suffix != ".pyc":
                archive.write(str(each.locate()), str(each))


_BARE = """
import sys
from pathlib import Path
from dev.gpu_day.wheels import unpack

site, refused = unpack(Path(sys.argv[1]), Path(sys.argv[2]))
assert not refused, refused
sys.path.append(str(site))
import alembic, annotated_types, colorlog, cpuinfo, einops, hjson, iniconfig, mako, markupsafe, msgpack, ninja
import packaging, pluggy, prometheus_client, psutil, pydantic, pydantic_core, pygments, pytest, sqlalchemy, tqdm, yaml
import typing_extensions, typing_inspection

class Model(pydantic.BaseModel):
    size: int

assert Model(size="3").size == 3 and msgpack.unpackb(msgpack.packb({"a": 1})) == {"a": 1}
print(Path(pydantic_core.__file__).is_relative_to(site))
"""


def test_wheels_that_were_fetched_serve_a_bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the code of the packages, all but those that import torch or numpy: DeepSpeed, Optuna and torchao."""
    index, wheels, site = (tmp_path / each for each in ("index", "wheels", "site"))
    index.mkdir()
    wheels.mkdir()
    names = f"{prepare._OF_PAIRS} {prepare._OF_TESTS} {prepare._OF_JOBS}".split()
    for name in names:
        if name not in ("deepspeed", "torchao"):
            _repacked(index, name)
    _published(index, prepare._pinned("torchao"), "cp310-abi3-manylinux_2_28_x86_64")
    for pin in prepare._BEFORE_3_11:
        _published(index, pin, "py3-none-any")
    _published(wheels, prepare._pinned("deepspeed"), "py3-none-any")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    prepare._download([f"{sys.version_info[0]}.{sys.version_info[1]}"], wheels)
    assert len(list(wheels.iterdir())) == len(names) + len(prepare._BEFORE_3_11)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    words = [str(tmp_path / "bare" / "bin" / "python"), "-c", _BARE, str(wheels), str(site)]
    done = subprocess.run(
        words, cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-2000:]


def test_without_results_there_is_nothing_to_collect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect.collect(tmp_path, tmp_path / "into") == 1
    assert f"gpu-day: {tmp_path} has no 1.jsonl or 2.jsonl or 3.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "into").exists()


def _kept(folder: Path, name: str, told: Any) -> None:
    tests = {"passed": 3, "skipped": 3, "reasons": {"one GPU": 2, "no fp8": 1}}
    parts = [{"name": "constants", "outcome": "ended well", "seconds": 2.5, "told": told, **tests}]
    lines = [json.dumps(each) for each in [{"rehearsal": False}, *parts] * 2]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def test_existing_results_are_collected_though_others_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collect, "PREDICTIONS", tmp_path / "none")
    _kept(tmp_path, "1", {"context_bytes": 5000})
    assert collect.collect(tmp_path, tmp_path / "into") == 0
    assert [each.name for each in (tmp_path / "into").iterdir()] == ["gpu-day.md"]
    page = (tmp_path / "into" / "gpu-day.md").read_text()
    assert "| 1, run 2 | constants | ended well | 3 | 3 | 2.5 | 2: one GPU; 1: no fp8 |" in page
    assert page.count("| context bytes | 5,000 |") == 2
    assert capsys.readouterr().err.splitlines() == [
        f"gpu-day: {tmp_path}/2.jsonl is missing: command 2 was not run",
        f"gpu-day: {tmp_path}/3.jsonl is missing: command 3 was not run",
        f"gpu-day: {tmp_path}/pairs.jsonl is missing: no pair was measured, and gpu-truth.md is not written",
        f"gpu-day: {tmp_path}/fixtures.jsonl is missing: there are no snapshots to replay",
    ]


def test_predictions_for_another_gpu_than_the_measured_one_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {"a pair": {"formulas": [1.0, 2.0, 3.0]}}
    before = tmp_path / "predictions.json"
    before.write_text(json.dumps({"gpu": "h200-141gb", "commit": "1" * 40, "pairs": pairs}))
    monkeypatch.setattr(collect, "PREDICTIONS", before)
    monkeypatch.setattr(collect, "predictions", lambda *_: {"product": "NVIDIA H200", "pairs": pairs})
    sentence = "That is NVIDIA H200, and what is above was measured on NVIDIA H100 80GB HBM3."
    for product, is_told in (("NVIDIA H200", False), ("NVIDIA H100 80GB HBM3", True)):
        _kept(tmp_path, "1", {"product": product})
        assert collect.collect(tmp_path, tmp_path / "into") == 0
        page = (tmp_path / "into" / "gpu-day.md").read_text()
        assert (sentence in page) is is_told
        assert "1 pairs were predicted beforehand, for h200-141gb at commit 111111111111." in page
    _kept(tmp_path, "2", {"product": "NVIDIA H200"})
    assert collect.collect(tmp_path, tmp_path / "into") == 0
    assert sentence.replace("was", "was also") in (tmp_path / "into" / "gpu-day.md").read_text()


def test_results_of_several_gpus_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "PREDICTIONS", tmp_path / "none")
    for name, product in {"1": "NVIDIA H100 80GB HBM3", "2": "NVIDIA H200", "3": None}.items():
        _kept(tmp_path, name, product and {"product": product})
    assert collect.collect(tmp_path, tmp_path / "into") == 0
    page = (tmp_path / "into" / "gpu-day.md").read_text()
    for command in ("1, run 2, NVIDIA H100 80GB HBM3", "2, run 1, NVIDIA H200", "3, run 1, unknown GPU"):
        assert f"| {command} | constants | ended well |" in page


def test_cut_off_parts_are_reported_and_the_rest_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collect, "PREDICTIONS", Path("predictions.json"))
    monkeypatch.setattr(collect, "ROOT", tmp_path)
    (tmp_path / "predictions.json").write_text("{")
    monkeypatch.setattr(collect, "variables", lambda: dict(os.environ))  # so that no page of pairs can be made
    _kept(tmp_path, "1", None)
    for name in ("2.jsonl", "pairs.jsonl", "fixtures.jsonl"):
        (tmp_path / name).write_text("{")
    assert collect.collect(tmp_path, tmp_path / "into") == 1
    page = (tmp_path / "into" / "gpu-day.md").read_text()
    assert "| 1, run 1 | constants | ended well |" in page
    assert "What was predicted beforehand cannot be read: " in page
    said = capsys.readouterr().err
    assert f"gpu-day: {tmp_path}/2.jsonl: 1 lines cannot be read" in said
    assert f"gpu-day: {tmp_path}/pairs.jsonl makes no page" in said
    assert f"gpu-day: {tmp_path}/fixtures.jsonl: 1 lines cannot be read" in said


def test_a_rehearsal_is_not_collected_with_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "2.jsonl").write_text('{"rehearsal": true}\n')
    assert collect.collect(tmp_path, ROOT / MEASURED) == 1
    assert "is of a rehearsal: nothing was measured; name another directory by --into" in capsys.readouterr().err
