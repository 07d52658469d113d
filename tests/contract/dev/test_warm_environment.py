"""The `python` of a warm environment, in front of a rank and of anything else."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from warm_environment import warm_environment


@pytest.fixture(scope="module")
def python() -> str:
    unused_elsewhere = ("colorsys",)
    return str(warm_environment(unused_elsewhere) / "bin" / "python")


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    """A script where a runner has the one that its ranks begin with."""
    script = tmp_path / "memtune_runner" / "enter" / "run_worker.py"
    script.parent.mkdir(parents=True)
    return script


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_a_rank_ends_as_it_would_in_a_python_of_its_own(python: str, rank: Path, text: str, code: int) -> None:
    rank.write_text(text)
    assert subprocess.run([python, str(rank)], timeout=60, check=False).returncode == code


def test_a_rank_is_forked_and_has_its_own_environment_arguments_and_outputs(python: str, rank: Path) -> None:
    rank.write_text(
        "import os, sys\nprint(os.environ['OWN'], sys.argv[1:], __name__, sys.path[1])\n"
        "print('colorsys' in sys.modules, os.getcwd(), file=sys.stderr)\n"
    )
    own = {**os.environ, "OWN": "own", "PYTHONPATH": "/first"}
    done = subprocess.run(
        [python, str(rank), "word"], env=own, cwd=rank.parent, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("own ['word'] __main__ /first\n", f"True {rank.parent}\n")


def test_a_rank_begins_with_the_sitecustomize_of_its_path_and_not_with_one_beside_its_script(
    python: str, rank: Path, tmp_path: Path
) -> None:
    rank.write_text("")
    for directory, text in ((tmp_path, "of the path"), (rank.parent, "beside")):
        (directory / "sitecustomize.py").write_text(f"print({text!r})\n")
    own = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([python, str(rank)], env=own, capture_output=True, text=True, check=True)
    assert done.stdout == "of the path\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_rank(python: str, rank: Path, number: signal.Signals) -> None:
    rank.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    with subprocess.Popen([python, str(rank)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        forked = Path("/proc") / process.stdout.readline().strip()
        process.send_signal(number)
        assert process.stdout.read() == "", "its output ends with it"
        assert process.wait(60) == -number
    deadline = time.monotonic() + 60
    while _is_running(forked):  # the kernel takes a moment
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_running(process: Path) -> bool:
    try:
        return "Z" not in (process / "stat").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_all_else_starts_anew_with_the_same_packages(python: str) -> None:
    words = "import sys; is_warm = 'colorsys' in sys.modules; import pytest; print(is_warm, sys.executable)"
    done = subprocess.run([python, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == f"False {python}\n"
