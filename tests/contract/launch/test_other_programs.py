"""Commands that are neither Python nor a launcher: the hooks enter only the rank's script below them."""

from __future__ import annotations

from pathlib import Path

import pytest
from launches import Place, install_runner
from warm_environment import launching_python

from memtune.wire.report import Ending

PROBE = {"MEMTUNE_RUN_KIND": "probe", "MEMTUNE_PROBE_STEPS": "3", "MEMTUNE_ATTEMPT": ""}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_runner(tmp_path_factory.mktemp("pod") / "runner")


@pytest.fixture
def place(runner: Path, tmp_path: Path) -> Place:
    return Place(runner, tmp_path, launching_python())


def test_a_shell_runs_once_per_rank_and_its_script_has_the_hooks(place: Place) -> None:
    # In one piece: the log shows a line that is written in several as far as it has come.
    place.script("import os, sys; print(' '.join(['trains', os.environ['RANK'], str(sys.argv[1:])]))")
    launch = place.run("bash", "-c", "echo shell $RANK; python -u train.py a", ranks=2, variables=PROBE)
    for rank in (0, 1):
        assert f"[rank {rank}] shell {rank}" in launch.stdout
        assert f"[rank {rank}] trains {rank} ['a']" in launch.stdout
    report = launch.report
    assert (report.ending, report.steps, report.memory.peak_reserved_bytes) == (Ending.SUCCEEDED, 3, 1001)


def test_the_hooks_enter_the_script_and_none_of_its_helpers(place: Place) -> None:
    """Covers version probes and processes started by the script: hooked processes list a stub module."""
    helper = place.script("import sys; print('helper', 'memtune_runner.watch' in sys.modules)", "helper.py")
    place.script(
        "import subprocess, sys\n"
        "print('script', 'memtune_runner.watch' in sys.modules)\n"
        f"subprocess.run([sys.executable, {helper!r}], check=True)\n"
    )
    probe = 'import sys; print("probe", "memtune_runner.watch" in sys.modules)'
    launch = place.run("sh", "-c", f"python -c '{probe}' && python train.py")
    for line in ("probe False", "script True", "helper False"):
        assert f"[rank 0] {line}\n" in launch.stdout


def test_the_users_sitecustomize_still_runs(place: Place) -> None:
    own = place.directory / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.greeting = 'own sitecustomize'")
    place.script("import sitecustomize; print(greeting, sitecustomize.__file__)")
    launch = place.run("sh", "-c", "python train.py", variables={**PROBE, "PYTHONPATH": str(own)})
    assert f"[rank 0] own sitecustomize {own}/sitecustomize.py\n" in launch.stdout
    assert launch.report.ending is Ending.SUCCEEDED


def test_launchers_within_a_shell_are_left_out(place: Place) -> None:
    script = place.script("import os, sys; print('rank', os.environ['RANK'], sys.argv[1:])")
    for line, printed in [
        (f"torchrun --nproc_per_node=8 {script} a", "rank 0 ['a']"),
        (f"deepspeed --num_gpus 8 {script} a", "rank 0 ['--local_rank=0', 'a']"),
        ("torchrun --no-python echo no python", "no python"),
    ]:
        launch = place.run("sh", "-c", line)
        assert [each for each in launch.stdout.splitlines() if each.startswith("[")] == [f"[rank 0] {printed}"]
        assert launch.exit_code == 0


def test_the_script_that_trained_is_reported_among_several(place: Place) -> None:
    place.script("import sys; print('prepared'); sys.exit(4)", "prepare.py")
    place.script("pass", "export.py")
    place.script("pass")
    line = "STEPS=0 python prepare.py; STEPS=7 python train.py; STEPS=0 python export.py"
    report = place.run("sh", "-c", line, variables=PROBE).report
    assert (report.ending, report.steps) == (Ending.SUCCEEDED, 7)


def test_a_script_below_a_shell_fails_with_the_code_of_its_failure(place: Place) -> None:
    place.script("raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB.')")
    report = place.run("sh", "-c", "python train.py || exit 9").report
    assert (report.ending, report.exit_code, report.steps) == (Ending.DEVICE_OOM, 85, 3)


def test_a_failure_hidden_by_a_pipe_ends_all_ranks_with_its_own_code(place: Place) -> None:
    place.script(
        "import os, time\n"
        "if os.environ['RANK'] == '0': raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB.')\n"
        "time.sleep(100)\n"
    )
    launch = place.run("sh", "-c", "python train.py 2>&1 | tee log", ranks=2)
    assert (launch.report.ending, launch.exit_code, launch.report.rank) == (Ending.DEVICE_OOM, 85, 0)
    assert "CUDA out of memory" in launch.report.log_tail


def test_a_program_without_any_python_fails_with_its_own_code(place: Place) -> None:
    report = place.run("sh", "-c", "echo no such flag >&2; exit 3").report
    assert (report.ending, report.exit_code) == (Ending.ERROR, 3)
    assert report.log_tail == "no such flag"
