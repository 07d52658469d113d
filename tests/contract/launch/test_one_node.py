"""Real ranks on one node: how they start, their output, and the report of each kind of end."""

from __future__ import annotations

import os
import py_compile
import signal
import sys
import time
from pathlib import Path

import pytest
from launches import Launch, Place, install_runner, wait_for
from warm_environment import launching_python

from memtune.plans.plan import Plan
from memtune.plans.resume import Format
from memtune.wire.report import Ending, read_report
from memtune_runner.checkpoints import manifest as manifests
from memtune_runner.checkpoints.manifest import Manifest
from memtune_runner.rank import ranks
from memtune_runner.rank.ranks import Rank

OOM = 'raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB.")'
# Blocks as in a collective: no Python code runs, so no signal handler does.
WAIT = "import time; time.sleep(60)"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_runner(tmp_path_factory.mktemp("pod") / "runner")


@pytest.fixture
def place(runner: Path, tmp_path: Path) -> Place:
    return Place(runner, tmp_path, launching_python())


@pytest.fixture
def anew(runner: Path, tmp_path: Path) -> Place:
    """Where each Python starts anew: a forked one ends in its own way."""
    return Place(runner, tmp_path)


def lines_of(launch: Launch, rank: int) -> list[str]:
    """Return the output of one rank in order."""
    prefix = f"[rank {rank}] "
    return [line.removeprefix(prefix) for line in launch.stdout.splitlines() if line.startswith(prefix)]


def test_every_rank_has_its_number_and_the_script_its_arguments(place: Place) -> None:
    script = place.script(
        "import os, sys\n"
        "print(*(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_RANK')))\n"
        "print(__name__, sys.argv[1:], sys.path[0] == os.path.dirname(os.path.abspath(sys.argv[0])), __file__)\n"
        "print(os.environ['PYTORCH_ALLOC_CONF'], os.environ['MASTER_ADDR'], sys.flags.optimize)\n"
    )
    launch = place.run(
        "python", "-O", script, "--lr", "1", ranks=2, variables={"MEMTUNE_PLAN": "fp32-ddp-none-mb1x1-exp"}
    )
    assert launch.exit_code == 0, launch.stderr
    for rank in (0, 1):
        assert lines_of(launch, rank) == [
            f"{rank} {rank} 2 2 0",
            f"__main__ ['--lr', '1'] True {script}",
            "expandable_segments:True 127.0.0.1 1",
        ]
    report = launch.report
    assert (report.ending, report.world, report.attempt, report.run) == (Ending.SUCCEEDED, 2, 0, "llama-train-0")
    assert (report.steps, report.memory.peak_reserved_bytes) == (3, 1001)


def test_a_reference_to_the_checkpoint_is_filled_in_before_the_script_starts(place: Place) -> None:
    script = place.script("import os, sys; print(sys.argv[1:], os.environ['OWN'])")
    words = ("python", script, "--from", "$(MEMTUNE_RESUME_FROM)", "--done=$(MEMTUNE_RESUME_SAMPLES)")
    launch = place.run(*words, ranks=1, variables={"OWN": "$(MEMTUNE_RESUME_FROM)/state.pt"})
    assert lines_of(launch, 0) == ["['--from', '', '--done=0'] /state.pt"]


SHOWS_RANKS = """
import os
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
print(sum(name in os.environ for name in names), "of", len(names))
"""


@pytest.mark.parametrize(
    ("words", "variables", "found"),
    [
        (["python", "train.py"], {}, 0),
        (["sh", "-c", "python train.py"], {}, 0),
        (["torchrun", "train.py"], {}, 7),
        (["python", "-m", "torch.distributed.run", "train.py"], {}, 7),
        (["sh", "-c", "torchrun train.py"], {}, 7),
        (["sh", "-c", "torchrun --no-python python train.py"], {}, 7),
        (["python", "train.py"], {"MEMTUNE_INTEGRATION": "sdk"}, 7),
        (["python", "train.py"], {"MEMTUNE_PLAN": "fp32-fsdp-none-mb1x1"}, 7),
    ],
    ids=["script", "shell", "torchrun", "module", "torchrun in a shell", "no python", "sdk", "fsdp"],
)
def test_a_single_rank_has_torchruns_variables_only_on_request(
    place: Place, words: list[str], variables: dict[str, str], found: int
) -> None:
    """Loops like nanoGPT's take RANK as the order to use DistributedDataParallel on a GPU."""
    place.script(SHOWS_RANKS)
    launch = place.run(*words, variables=variables)
    assert lines_of(launch, 0) == [f"{found} of 7"], launch.stderr
    assert launch.report.ending is Ending.SUCCEEDED


def test_two_ranks_always_have_torchruns_variables(place: Place) -> None:
    launch = place.run("python", place.script(SHOWS_RANKS), ranks=2)
    assert [lines_of(launch, rank) for rank in (0, 1)] == [["7 of 7"]] * 2


def test_modules_code_and_other_launchers_run_in_each_rank(place: Place) -> None:
    place.script("import sys; print('module', sys.argv[1:])", "pkg.py")
    script = place.script("import sys; print('script', sys.argv[1:])")
    for words, printed in [
        (["python", "-m", "pkg", "a"], "module ['a']"),
        (["python", "-Ic", "import sys; print('code', sys.argv)", "a"], "code ['-c', 'a']"),
        (["torchrun", "--nproc_per_node", "8", script, "a"], "script ['a']"),
        (["deepspeed", "--num_gpus=8", script, "a"], "script ['--local_rank=0', 'a']"),
    ]:
        launch = place.run(*words)
        assert lines_of(launch, 0) == [printed], launch.stderr
        assert launch.report.ending is Ending.SUCCEEDED


def test_a_thread_that_outlives_its_script_finds_the_main_module(anew: Place) -> None:
    code = (
        "import atexit, pickle, sys, threading\n"
        "class State: pass\n"
        "def save():\n"
        "    threading.main_thread().join(0.5)\n"
        "    print('saved', type(pickle.loads(pickle.dumps(State()))).__name__, names)\n"
        "names = [each in sys.argv for each in 'ab']\n"
        "threading.Thread(target=save).start()\n"
        "atexit.register(lambda: print('left', len(pickle.dumps(State())) > 0))\n"
        "sys.exit()\n"
    )
    script = anew.script(code)
    anew.script(code, "pkg.py")
    application = anew.directory / "application"
    application.mkdir()
    anew.script(code, "application/__main__.py")
    for words in (["python", script], ["python", "-m", "pkg"], ["python", str(application)], ["python", "-c", code]):
        launch = anew.run(*words, "a")
        assert lines_of(launch, 0) == ["saved State [True, False]", "left True"], launch.stderr


def test_annotations_of_a_line_of_code_are_values(place: Place) -> None:
    launch = place.run("python", "-c", "def step(size: int): pass\nprint(step.__annotations__)")
    assert lines_of(launch, 0) == ["{'size': <class 'int'>}"]


def test_a_compiled_script_runs(place: Place) -> None:
    py_compile.compile(place.script("print('trains', __name__, __file__)"), str(place.directory / "own.pyc"))
    launch = place.run("python", "own.pyc")
    assert lines_of(launch, 0) == [f"trains __main__ {place.directory}/own.pyc"], launch.stderr


@pytest.mark.parametrize("name", ["train.py", "train"])
def test_a_script_finds_itself_from_another_directory(name: str, place: Place) -> None:
    file = place.directory / (name if name.endswith(".py") else f"{name}/__main__.py")
    file.parent.mkdir(exist_ok=True)
    place.script(
        "import os, sys\n"
        "os.chdir('/')\n"
        "print(sys.argv[0], __file__, __loader__.path, sys._getframe().f_code.co_filename, sys.path[0])\n",
        str(file.relative_to(place.directory)),
    )
    launch = place.run("python", name)
    assert lines_of(launch, 0) == [f"{name} {file} {file} {file} {file.parent}"], launch.stderr


def test_output_is_passed_on_line_by_line(place: Place) -> None:
    script = place.script(
        "import os\n"
        "os.write(1, b'bar 1\\rbar 2\\rbar 3\\nwindows\\r\\n' + b'\\xff\\x00\\n' + b'x' * 40000 + b'\\nno end')\n"
        "os.write(2, b'warned\\n')\n"
    )
    launch = place.run("python", script)
    bar, windows, garbage, *long, unfinished = lines_of(launch, 0)
    assert (bar, windows, unfinished) == ("bar 3", "windows", "no end")
    assert garbage == "\N{REPLACEMENT CHARACTER}\x00"
    assert [len(piece) for piece in long] == [16384, 16384, 7232]
    assert "[rank 0] warned" in launch.stderr.splitlines()


def test_an_out_of_memory_in_one_rank_ends_all(place: Place) -> None:
    script = place.script(f"import os\nif os.environ['RANK'] == '2':\n    {OOM}\n{WAIT}")
    launch = place.run("python", script, ranks=4)
    report = launch.report
    assert (report.ending, report.exit_code, report.rank) == (Ending.DEVICE_OOM, 85, 2)
    assert "Tried to allocate" in report.message
    assert report.failure_order == 0
    assert report.log_tail.endswith("Tried to allocate 20.00 MiB.")
    assert "worker.py" not in launch.stderr  # the traceback shows only the script


@pytest.mark.parametrize(
    ("end", "ending", "code", "message"),
    [
        ("raise KeyError('lr')", Ending.ERROR, 1, "KeyError: 'lr'"),
        ("raise SystemExit(3)", Ending.ERROR, 3, "SystemExit: 3"),
        ("import argparse; argparse.ArgumentParser().error('no --lr')", Ending.ERROR, 2, ".py: error: no --lr"),
        ("os.kill(os.getpid(), 9)", Ending.KILLED, 137, "SIGKILL"),
        ("os.kill(os.getpid(), 11)", Ending.KILLED, 139, "SIGSEGV"),
        ("print('std::bad_alloc', flush=True); os.abort()", Ending.HOST_OOM, 86, "std::bad_alloc"),
    ],
)
def test_each_way_to_fail_is_reported(place: Place, end: str, ending: Ending, code: int, message: str) -> None:
    script = place.script(f"import os\nif os.environ['RANK'] == '1':\n    {end}\n{WAIT}")
    report = place.run("python", script, ranks=2).report
    assert (report.ending, report.exit_code, report.rank) == (ending, code, 1)
    assert message in report.message


def test_consequences_of_a_failure_are_not_its_cause(place: Place) -> None:
    script = place.script(
        "import os, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    while not os.path.exists('ready'):\n        time.sleep(0.01)\n"
        "    raise RuntimeError('Connection closed by peer [127.0.0.1]:1')\n"
        "open('ready', 'w').close()\n"
        "time.sleep(0.3)\n"
        "raise MemoryError\n"
    )
    report = place.run("python", script, ranks=2).report
    assert (report.ending, report.exit_code, report.rank) == (Ending.HOST_OOM, 86, 1)


def test_a_failed_rank_that_does_not_end_delays_no_other(place: Place) -> None:
    held = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    launch = place.run("python", place.script(f"{held}\n{OOM}"))
    assert launch.report.ending is Ending.DEVICE_OOM


def test_a_closed_log_loses_neither_the_report_nor_the_exit_code(place: Place) -> None:
    launch = place.start("python", "-c", f"print('x'); {OOM}")
    assert launch.process.stdout is not None
    assert launch.process.stderr is not None
    launch.process.stdout.close()
    with launch.process.stderr as stderr:
        output = stderr.read()
    assert launch.process.wait() == 85, output
    report = read_report((launch.directory / "termination-log").read_bytes())
    assert report == read_report((launch.directory / "report.json").read_bytes())
    assert (report.ending, report.exit_code) == (Ending.DEVICE_OOM, 85)
    assert "memtune: the report cannot be written to the log: Broken pipe" in output


def test_the_log_tail_can_be_switched_off(place: Place) -> None:
    report = place.run(
        "python", place.script("raise ValueError('x')"), variables={"MEMTUNE_REPORT_LOG_TAIL": "0"}
    ).report
    assert (report.message, report.log_tail) == ("ValueError: x", "")


def test_sigterm_reaches_the_script_which_may_still_save(place: Place) -> None:
    script = place.script(
        "import signal, sys, time\n"
        "def save(*_):\n    open('saved', 'w').close()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nopen('ready', 'w').close()\ntime.sleep(60)"
    )
    launch = place.start("python", script)
    wait_for(launch, place.directory / "ready")
    launch.process.send_signal(signal.SIGTERM)
    report = launch.end().report
    assert (report.ending, report.exit_code, report.steps) == (Ending.TERMINATED, 143, 3)
    assert "SIGTERM" in report.message
    assert (place.directory / "saved").exists()


def test_no_process_survives_not_even_in_its_own_session(anew: Place) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    script = anew.script(
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = subprocess.Popen([sys.executable, '-c', '{deaf}'], start_new_session=True)\n"
        "open('ready.part', 'w').write(str(child.pid))\nimport os; os.rename('ready.part', 'ready')\ntime.sleep(60)"
    )
    launch = anew.start("python", script, variables={"MEMTUNE_GRACE_SECONDS": "1"})
    wait_for(launch, anew.directory / "ready")
    launch.process.send_signal(signal.SIGTERM)
    assert launch.end().report.ending is Ending.TERMINATED
    child = int((anew.directory / "ready").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.parametrize(
    ("steps", "ending", "code"), [("0", Ending.HUNG, 87), ("3", Ending.TERMINATED, 143)], ids=["hangs", "is slow"]
)
def test_a_probe_ends_by_itself_when_its_seconds_are_over(place: Place, steps: str, ending: Ending, code: int) -> None:
    """The operator may be down."""
    variables = {"MEMTUNE_RUN_KIND": "probe", "MEMTUNE_PROBE_SECONDS": "4", "MEMTUNE_ATTEMPT": "", "STEPS": steps}
    report = place.run("python", place.script("import time; time.sleep(60)"), variables=variables).report
    assert (report.ending, report.exit_code) == (ending, code)
    assert report.message == "the probe neither ended nor reported within 4 s, its part of tuning.maxGpuSeconds"


def test_a_probe_that_ended_in_time_succeeds_though_seen_later(place: Place) -> None:
    script = place.script(
        "import os, time\nopen('ready', 'w').close()\nwhile not os.path.exists('go'):\n    time.sleep(0.01)"
    )
    probe = {"MEMTUNE_RUN_KIND": "probe", "MEMTUNE_PROBE_SECONDS": "4", "MEMTUNE_ATTEMPT": ""}
    launch = place.start("python", script, variables=probe)
    wait_for(launch, place.directory / "ready")
    launch.process.send_signal(signal.SIGSTOP)
    (place.directory / "go").touch()
    time.sleep(4.5)
    launch.process.send_signal(signal.SIGCONT)
    assert launch.end().report.ending is Ending.SUCCEEDED


def test_a_probe_in_which_nothing_trained_measured_nothing(place: Place) -> None:
    probe = {"MEMTUNE_RUN_KIND": "probe", "MEMTUNE_PROBE_STEPS": "3", "MEMTUNE_ATTEMPT": ""}
    report = place.run("true", variables=probe).report
    assert (report.ending, report.exit_code) == (Ending.BAD_INPUT, 88)
    assert "the runner was in no Python of the command" in report.message
    report = place.run("python", place.script(""), variables={"STEPS": "0", **probe}).report
    assert "the optimizer never stepped" in report.message


@pytest.mark.parametrize("command", ["PYTHONPATH=. python {}", "python -I {}"])
def test_a_training_without_the_hooks_is_reported(place: Place, command: str) -> None:
    report = place.run("sh", "-c", command.format(place.script(""))).report
    assert report.ending is Ending.SUCCEEDED
    assert "PYTHONPATH=DIRECTORY:$PYTHONPATH" in report.warnings


@pytest.mark.parametrize("command", [("python",), ("sh", "-c", 'python "$0"')])
def test_a_script_that_leaves_without_a_report_is_reported(place: Place, command: tuple[str, ...]) -> None:
    report = place.run(*command, place.script("import os; os._exit(0)")).report
    assert report.ending is Ending.SUCCEEDED
    assert "left without a report, as os._exit does" in report.warnings


def test_a_worker_that_python_ends_leaves_no_mark_of_another_end(tmp_path: Path) -> None:
    with ranks.leaving_a_report(tmp_path, Rank()):
        assert ranks.leaves_no_report(tmp_path, Rank())
    assert not ranks.leaves_no_report(tmp_path, Rank())


def test_python_of_another_place_runs_the_script(place: Place) -> None:
    other = place.directory / "python3.11"
    other.write_text(f'#!/bin/sh\nOTHER=yes exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    launch = place.run(str(other), place.script("import os; print(os.environ['OTHER'])"))
    assert lines_of(launch, 0) == ["yes"]


def test_a_script_has_the_variables_that_accelerate_launch_sets(place: Place) -> None:
    script = place.script("import os; print(os.environ.get('ACCELERATE_MIXED_PRECISION'), os.environ['WORLD_SIZE'])")
    launch = place.run("accelerate", "launch", "--num_processes", "8", "--mixed_precision", "bf16", script)
    assert lines_of(launch, 0)[-1] == "bf16 1", launch.stderr


def test_a_plan_for_deepspeed_has_its_configuration_ready(place: Place) -> None:
    script = place.script("import json, os; print(json.load(open(os.environ['MEMTUNE_DEEPSPEED_CONFIG'])))")
    variables = {
        "MEMTUNE_PLAN": "bf16-z2-none-mb1x1",
        "MEMTUNE_DEEPSPEED_CONFIG": str(place.directory / "deepspeed.json"),
    }
    launch = place.run("python", script, variables=variables)
    assert "'train_micro_batch_size_per_gpu': 1" in lines_of(launch, 0)[0]


def test_a_run_goes_on_from_the_newest_complete_checkpoint(place: Place) -> None:
    saves = place.directory / "saves"
    saved = saves / "step-9"
    saved.mkdir(parents=True)
    plan = Plan.parse("fp32-ddp-none-mb1x1")
    (saved / "weights").write_bytes(b"12")
    manifest = Manifest(step=9, samples=64, plan=plan, world=1, format=Format.DCP, files={"weights": 2})
    manifests.write(saved, manifest)
    script = place.script(
        "import os; print(*(os.environ[f'MEMTUNE_RESUME_{each}'] for each in ('FROM', 'STEP', 'SAMPLES')))"
    )
    launch = place.run("python", script, variables={"MEMTUNE_CHECKPOINT_PATH": str(saves)})
    assert lines_of(launch, 0) == [f"{saved} 9 64"], launch.stderr


def test_the_last_lines_of_a_failed_script_are_its_own(place: Place) -> None:
    """It is asked to end while its exit handlers still run."""
    script = place.script(
        "import atexit, time\natexit.register(time.sleep, 1.0)\nraise ValueError('of the script')\n", "fails.py"
    )
    launch = place.run("python", script)
    assert launch.report.message == "ValueError: of the script"
    assert launch.stderr.rstrip().endswith("ValueError: of the script"), launch.stderr


def test_checkpoints_of_a_probe_are_deleted_at_its_end(place: Place) -> None:
    """A probe of the same name that was killed may have left some, and what the job saved before is kept."""
    saves = place.directory / "saves"
    own, before = saves / ".memtune-llama-probe-1", saves / "step-8"
    for each in (own / "step-1", before):
        each.mkdir(parents=True)
    script = place.script(
        "import os, pathlib\n"
        "saves = pathlib.Path(os.environ['MEMTUNE_CHECKPOINT_PATH'])\n"
        "print(saves, sorted(saves.iterdir()))\n"
        "(saves / 'step-2').mkdir()\n"
        "(saves / 'step-2' / 'weights').write_bytes(b'12')\n"
        "raise SystemExit(int(os.environ.get('FAIL', 0)))\n"
    )
    variables = {
        "MEMTUNE_CHECKPOINT_PATH": str(own),
        "MEMTUNE_RUN": "llama-probe-1",
        "MEMTUNE_RUN_KIND": "probe",
        "MEMTUNE_ATTEMPT": "",
    }
    for fails in ("0", "3"):
        launch = place.run("python", script, variables={**variables, "FAIL": fails})
        assert lines_of(launch, 0) == [f"{own} []"], launch.stderr
        assert launch.exit_code == int(fails)
        assert list(saves.iterdir()) == [before]


def test_a_checkpoint_of_a_killed_rank_is_reported(place: Place) -> None:
    """The launcher looks for it: the rank had no time to report it."""
    saves = place.directory / "saves"
    script = place.script(
        "import os, pathlib, signal\n"
        "from memtune.plans.plan import Plan\n"
        "from memtune.plans.resume import Format\n"
        "from memtune_runner.checkpoints import manifest\n"
        f"saved = pathlib.Path({str(saves / 'step-8')!r})\n"
        "saved.mkdir()\n"
        "(saved / 'weights').write_bytes(b'12')\n"
        "plan = Plan.parse('fp32-ddp-none-mb1x1')\n"
        "manifest.write(saved, manifest.Manifest(8, 64, plan, 1, Format.DCP, files={'weights': 2}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    report = place.run("python", script, variables={"MEMTUNE_CHECKPOINT_PATH": str(saves)}).report
    assert report.exit_code == 137
    assert (report.checkpoint_samples, report.checkpoint_format) == (64, "dcp")
