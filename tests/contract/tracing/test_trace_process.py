"""The trace process, whatever the user's code does in it: one sentence, within limits of time and memory.

Most are forked from a Python that has imported torch, which takes longer than what is tried. Those stay new that try
what the process does before: on a volume, and quiet.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest
from warm_environment import read_by_libraries
from warm_pythons import TRACING, WarmPython

from memtune.wire import environment
from memtune.wire.trace_message import unpack
from memtune_runner.launch.process_trees import descendants
from memtune_runner.rank.failure_causes import INSTALL

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
# Of what a module begins with; the rest is what a user wrote.
IMPORTS = "import ctypes, mmap, os, signal, subprocess, sys, threading, time, torch; from torch import nn"


def call(factory: str, folder: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that traces a factory, and its variables; the folder may hold the user's code."""
    command = [sys.executable, "-m", "memtune_runner", "trace", factory, "--batch", "2", "--sequence-length", "4"]
    command += ["--memory", "4Gi", "--time-limit", "100", "--output", str(folder / "trace.json"), *words]
    return command, os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(PROGRAMS), *sys.path])}


def warm(command: Sequence[str], folder: Path, errors: IO[bytes] | None = None) -> WarmPython:
    """Start a command that traces in a process that has torch already."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(PROGRAMS), *sys.path])}
    return WarmPython(command[1:], variables, TRACING, None, errors, folder, read_by_libraries())


def ended_warm(factory: str, folder: Path, *words: str, program: Path | None = None) -> tuple[int, str, str]:
    """Trace a factory, by a program of the test's if there is one; return the exit code, the output and the errors."""
    command, _ = call(factory, folder, *words)
    if program:
        command[1:3] = [str(program)]
    with tempfile.TemporaryFile() as errors:
        process = warm(command, folder, errors)
        try:
            output, _ = process.communicate(300)
        finally:
            process.kill()
        errors.seek(0)
        return process.returncode or 0, output, errors.read().decode()


def refused(factory: str, folder: Path, *limits: str) -> str:
    """Return the trace process's message for a factory that it must reject."""
    code, output, errors = ended_warm(factory, folder, *limits)
    assert code == 2, errors
    assert not (folder / "trace.json").exists()
    (line,) = output.splitlines()
    return line


@pytest.mark.parametrize(("volume", "mounted"), [("code", True), ("work", False)])
def test_a_message_says_whether_the_factory_came_from_a_volume(volume: str, mounted: bool, tmp_path: Path) -> None:
    """If the working directory is a volume, torch must open nothing of its own there."""
    for name in ("code", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "mine.py").write_text("from factories import plain\n")
    message = tmp_path / "message"
    words = ["--numerics", "full", "--message", "--output", str(message)]
    command, variables = call("mine:plain", tmp_path / "code", *words)
    variables[environment.TRACE_VOLUMES] = f"/nowhere:{tmp_path / volume}"
    subprocess.run(command, check=True, env=variables, cwd=tmp_path / "work", timeout=300)
    assert unpack(message.read_text()).mounted is mounted


@pytest.mark.parametrize(
    ("factory", "limits", "words"),
    [
        (
            "factories:endless",
            ["--time-limit", "8"],
            f"longer than it may, 8 s, while the factory was called, in {PROGRAMS / 'factories.py'}, line ",
        ),
        ("factories:greedy", [], "factories.py, line"),
        ("factories:hoarding", [], "tracing stopped in Hoarding, operator"),
    ],
)
def test_limits_end_a_trace(factory: str, limits: list[str], words: str, tmp_path: Path) -> None:
    assert words in refused(factory, tmp_path, *limits)


def test_an_error_is_reported_though_the_process_waits_or_prints_at_exit(tmp_path: Path) -> None:
    """The user's module leaves a waiting thread, or prints at Python's exit."""
    lines = (
        "import atexit, sys, threading",
        "threading.Thread(target=threading.Event().wait).start()",
        "atexit.register(lambda: print('ended', file=sys.stderr))",
        "1 / 0",
    )
    (tmp_path / "ending.py").write_text("\n".join(lines))
    assert "raised ZeroDivisionError: division by zero in" in refused("ending:build", tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import torch; HELD = torch.ones(1 << 36)", "took more host memory than it may in"),
        ("HELD = bytearray(1 << 40)", "took more host memory than it may in"),
        ("import torch; torch.zeros(1).cuda()", "there is no GPU where a model is traced"),
        ("import sys; sys.exit(0)", "raised SystemExit: 0 in"),
        ("import torch; torch.ops.load_library('/nowhere/kernels.so')", "/nowhere/kernels.so"),
        ("raise ValueError('two\\nlines')", "raised ValueError: two in"),
        ("import no_library.of_models", f"line 1, which is not installed; {INSTALL}"),
    ],
)
def test_an_error_while_importing_a_factory_is_reported_with_its_line(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "importing.py").write_text(f"{line}\n")
    told = refused("importing:build", tmp_path)
    assert told.startswith("factory 'importing:build': importing importing ")
    assert words in told
    assert "importing.py, line 1" in told


def factory_of(line: str, folder: Path) -> str:
    """Return a factory that runs this line, then returns a valid model."""
    (folder / "mine.py").write_text(
        f"{IMPORTS}\nfrom factories import plain as good\n\ndef build():\n {line}\n return good(2, 4)\n"
    )
    return "mine:build"


def model_of(line: str, folder: Path) -> str:
    """Return a model whose inner module runs this line."""
    lines = (
        IMPORTS,
        "class Inner(nn.Module):",
        " def forward(self, hidden):",
        f"  {line}",
        "  return hidden",
        "class Outer(nn.Module):",
        " def __init__(self):",
        "  super().__init__()",
        "  self.first, self.inner = nn.Linear(8, 8), Inner()",
        " def forward(self, hidden):",
        "  return self.inner(self.first(hidden)).sum()",
        "def build():",
        " return Outer(), torch.zeros(2, 8)",
    )
    (folder / "mine.py").write_text("\n".join(lines))
    return "mine:build"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("os._exit(3)", "the process ended itself with exit code 3 while the factory was called; "),
        ("ctypes.string_at(0)", "ended by signal 11 (SIGSEGV) while the factory was called, in {file}, line 5; "),
        ("os.kill(os.getpid(), signal.SIGKILL)", "(SIGKILL) while the factory was called; the kernel does that where"),
        ("os.fork() or ctypes.string_at(0); os.wait(); os._exit(3)", "with exit code 3 while the factory was called; "),
        ("sys.exit(4)", "raised SystemExit: 4 in {file}, line 5; a factory and its model must not end Python"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt: no message in {file}, line 5; a factory and its model"),
        ("raise type('Own', (BaseException,), {})('hi')", "raised Own: hi in {file}, line 5; the factory must build"),
        ("raise type('Bad', (Exception,), {'__str__': lambda _: 1 / 0})", "raised Bad: no message in {file}, line 5"),
        ("raise ValueError('y' * 10**7)", "raised ValueError: yyy"),
        ("os.closerange(0, 4096); 1 / 0", "raised ZeroDivisionError: division by zero in {file}, line 5"),
        ("os.remove(__file__); os.chdir('/'); 1 / 0", "raised ZeroDivisionError: division by zero in {file}, line 5"),
    ],
)  # fmt: skip
def test_an_exit_of_a_factory_is_reported_by_its_kind(line: str, words: str, tmp_path: Path) -> None:
    told = refused(factory_of(line, tmp_path), tmp_path)
    assert words.format(file=tmp_path / "mine.py") in told
    assert "--memory" not in told
    assert len(told) < 1000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("os._exit(3)", "the process ended itself with exit code 3 while the model was run, in inner; "),
        ("ctypes.string_at(0)", "(SIGSEGV) while the model was run, in inner, in {file}, line 4; "),
        ("sys.exit(4)", "tracing stopped in inner, operator aten.addmm.default, in {file}, line 4: SystemExit: 4; a"),
    ],
)
def test_an_exit_of_a_model_is_reported_with_its_module(line: str, words: str, tmp_path: Path) -> None:
    told = refused(model_of(line, tmp_path), tmp_path)
    assert words.format(file=tmp_path / "mine.py") in told
    assert "--memory" not in told


@pytest.mark.parametrize(
    "line",
    [
        "held = mmap.mmap(-1, 1 << 30); [held.write(bytes(1 << 26)) for _ in range(16)]; time.sleep(99)",
        "held = open(os.memfd_create('x'), 'wb'); [held.write(bytes(1 << 26)) for _ in range(20)]; time.sleep(99)",
        "[os.fork() for _ in range(3)]; held = b'x' * (1 << 27); time.sleep(99)",
    ],
    ids=["shared", "file in memory", "forks"],
)
def test_memory_that_no_limit_of_one_process_counts_is_counted(line: str, tmp_path: Path) -> None:
    told = refused(factory_of(line, tmp_path), tmp_path, "--memory", "1Gi")
    assert "the factory took more host memory than it may, 1.0 GiB with what its processes share, while the f" in told
    assert f"in {tmp_path / 'mine.py'}, line 5; make tensors" in told


def test_a_pod_leaves_last_words_though_its_factory_leaves_none(tmp_path: Path) -> None:
    message = tmp_path / "message"
    expected = refused(factory_of("os._exit(3)", tmp_path), tmp_path, "--message", "--output", str(message))
    assert message.read_text() == expected


def test_a_process_that_answers_nothing_is_ended(tmp_path: Path) -> None:
    """It blocks the signals that it can and waits in C."""
    line = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); ctypes.CDLL(None).sleep(1000)"
    told = refused(factory_of(line, tmp_path), tmp_path, "--time-limit", "8")
    assert told.startswith("tracing took longer than it may, 8 s, while the factory was called")


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)",
        "os.fork()",
        "threading.Thread(target=threading.Event().wait).start()",
        "sys.stdout.close(); os.close(1); os.close(2)",
        "os.chdir('/'); print('x' * (1 << 26))",
    ],
    ids=["a child that stays", "a fork that goes on", "a thread", "closed streams", "elsewhere, and talking"],
)
def test_remaining_threads_of_a_factory_do_not_block_the_trace(line: str, tmp_path: Path) -> None:
    started = time.monotonic()
    code, output, errors = ended_warm(
        factory_of(line, tmp_path), tmp_path, "--numerics", "full", "--output", "trace.json"
    )
    assert (code, output) == (0, ""), errors[-3000:]
    assert (tmp_path / "trace.json").exists()
    assert time.monotonic() - started < 50


def test_a_machine_that_allows_less_memory_than_the_trace_may_take_keeps_its_own_limit(tmp_path: Path) -> None:
    below = tmp_path / "below.py"
    below.write_text(
        "import resource, runpy\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))\n"
        "runpy.run_module('memtune_runner', run_name='__main__', alter_sys=True)\n"
    )
    assert ended_warm("factories:plain", tmp_path, "--numerics", "full", program=below) == (0, "", "")
    assert (tmp_path / "trace.json").exists()


def test_a_quiet_trace_prints_nothing(tmp_path: Path) -> None:
    command, variables = call("factories:printing", tmp_path, "--numerics", "full", "--quiet")
    assert subprocess.run(command, check=True, capture_output=True, env=variables, timeout=300).stderr == b""


def test_a_terminated_trace_leaves_no_process(tmp_path: Path) -> None:
    started = tmp_path / "started"
    line = f"subprocess.Popen(['sleep', '1000'], start_new_session=True); open({str(started)!r}, 'w'); time.sleep(99)"
    command, _ = call(factory_of(line, tmp_path), tmp_path)
    process = warm(command, tmp_path)
    try:
        while not started.exists():
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"it ended with {process.wait(0.1)}")
        left = descendants(process.pid)
        assert len(left) == 2
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
    assert not [each for each in left if Path(f"/proc/{each}").exists()]
