"""`memtune run`: the whole loop with processes of this machine, interrupted and resumed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_rehearsal import tiny_rehearsal
from warm_environment import training_python

_PATHS = os.pathsep.join(sys.path)
_SECONDS = 300
# Where a pod would mount the checkpoint volume; on one machine nothing is mounted.
MOUNTED = Path("/mounted-in-pods-only")


def job(directory: Path, **spec: Any) -> Path:
    volume = {"path": str(MOUNTED), "volume": {"hostPath": {"path": "/data"}}}
    body = tiny_rehearsal(4, **{"checkpoint": volume, **spec})
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump(body))
    return file


def start(file: Path, python: str = sys.executable, program: str | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-m", "memtune_cli.main", "run", str(file), "--state", str(file.parent / "state")],
        executable=program,
        env={**os.environ, "PYTHONPATH": _PATHS, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_warm(file: Path) -> subprocess.Popen[str]:
    """Start one that is forked after its imports, as its ranks are."""
    return start(file, training_python())


def start_with_warm_ranks(file: Path) -> subprocess.Popen[str]:
    """Start one anew, in the process of this id, with ranks that are forked after their imports."""
    return start(file, training_python(), sys.executable)


def told_once(said: str) -> None:
    """Check that each message has its own line and no line repeats."""
    told = [re.sub(r"^\S+  (\[\w+\] ?)?", "", line) for line in said.splitlines()]
    assert sorted({line for line in told if line and told.count(line) > 1}) == [], said


def processes_of(state: Path) -> list[str]:
    """Return the running processes with this state directory in their variables."""
    expected = str(state).encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if expected in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended since
    return found


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{path} is not there"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_an_interrupted_job_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file, state = job(tmp_path), tmp_path / "state"
    first = start_warm(file)
    wait_for(state / "runs" / "tiny-probe-1" / "process.json", first)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=_SECONDS)
    assert first.returncode == 130, said
    assert processes_of(state) == []
    told_once(said)

    second = start_warm(file)
    said, _ = second.communicate(timeout=_SECONDS)
    assert second.returncode == 0, said
    status = json.loads((state / "job.json").read_text())["status"]
    assert status["phase"] == "Succeeded"
    (attempt,) = status["attempts"]
    (winner,) = [probe for probe in status["probes"] if probe.get("verdict") == "succeeded"]
    assert attempt["plan"] == winner["plan"]
    assert list((state / "checkpoints").iterdir()), "checkpoints stay with the job's state"
    assert not MOUNTED.exists()
    assert "predicted" in said
    assert "attempt 1 trains on" in said
    assert "[Running]" not in said, "the line before has said it"
    assert "trained to its end" in said
    assert status["trainedSamples"] == status["totalSamples"] > 0
    assert f"{status['totalSamples']:,} of {status['totalSamples']:,} samples" in said.replace("\n", " ")
    told_once(said)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_a_closed_pipe_ends_the_runs(tmp_path: Path) -> None:
    """As in `memtune run job.yaml | head -1`: nothing more is said, on stderr neither."""
    file, state = job(tmp_path), tmp_path / "state"
    process = subprocess.Popen(
        [sys.executable, "-m", "memtune_cli.main", "run", str(file), "--state", str(state)],
        env={**os.environ, "PYTHONPATH": _PATHS, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout as read:
        assert read.readline()
    with process.stderr as errors:
        assert errors.read() == ""
    assert process.wait(_SECONDS) == 130
    assert processes_of(state) == []
    assert json.loads((state / "job.json").read_text())["spec"]["suspend"] is True


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_a_closed_terminal_ends_the_runs(tmp_path: Path) -> None:
    """Nothing can be printed any more: the terminal is gone."""
    file, state = job(tmp_path), tmp_path / "state"
    terminal, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "memtune_cli.main", "run", str(file), "--state", str(state)],
        env={**os.environ, "PYTHONPATH": _PATHS, "OMP_NUM_THREADS": "1", "TERM": "xterm"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
        text=True,
        start_new_session=True,
    )
    os.close(inner)
    wait_for(state / "runs" / "tiny-probe-1" / "process.json", process)
    os.close(terminal)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130
    assert processes_of(state) == []
    assert json.loads((state / "job.json").read_text())["status"]["phase"] == "Suspended"


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="sets a limit of another process")
def test_on_a_full_disk_an_interruption_still_ends_everything_and_the_next_call_goes_on(tmp_path: Path) -> None:
    file, state = job(tmp_path), tmp_path / "state"
    first = start_with_warm_ranks(file)
    wait_for(state / "runs" / "tiny-probe-1" / "process.json", first)
    resource.prlimit(first.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 130, said
    assert "cannot be written" in said
    assert "Traceback" not in said
    assert processes_of(state) == []

    second = start_warm(file)
    said, _ = second.communicate(timeout=_SECONDS)
    assert second.returncode == 0, said


@pytest.mark.parametrize("garbage", [None, "{}", "not even JSON"], ids=["removed", "emptied", "overwritten"])
def test_an_interruption_ends_everything_though_the_state_is_broken(tmp_path: Path, garbage: str | None) -> None:
    state = tmp_path / "state"
    process = start(job(tmp_path))
    wait_for(state / "runs" / "tiny-probe-1" / "process.json", process)
    process.send_signal(signal.SIGSTOP)  # otherwise the job may fail and end before the interruption arrives
    if garbage is None:
        while state.exists():  # what it has started writes bytecode there meanwhile
            shutil.rmtree(state, ignore_errors=True)
    else:
        (state / "job.json").write_text(garbage)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode in (1, 130), said
    assert processes_of(state) == []


def test_requests_beyond_one_machine_are_refused(tmp_path: Path) -> None:
    process = start(job(tmp_path, resources={"nodes": 2, "gpusPerNode": 1, "gpuMemory": "2Gi", "device": "virtual"}))
    said, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 1
    assert "spec.resources.nodes: this is one machine" in said


def test_a_job_that_is_suspended_is_not_waited_for(tmp_path: Path) -> None:
    process = start_warm(job(tmp_path, suspend=True))
    said, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 1
    assert "suspended: nothing runs" in said
    second = start_warm(job(tmp_path))
    said, _ = second.communicate(timeout=_SECONDS)
    assert second.returncode == 0, said


def test_an_invalid_job_is_refused_with_its_field(tmp_path: Path) -> None:
    process = start(job(tmp_path, training={"globalBatchSize": 0, "sequenceLength": 16}))
    said, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 2
    assert "spec.training.globalBatchSize" in said
    assert "Traceback" not in said


def test_a_checkpoint_path_that_cannot_be_made_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = start(job(tmp_path, checkpoint={"path": str(tmp_path / "file" / "checkpoints")}))
    said, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 2
    assert f"spec.checkpoint.path: {tmp_path}/file/checkpoints cannot be written" in said
    assert "leave path out" in said
    assert not (tmp_path / "state" / "runs").exists()


def test_a_second_call_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = start(job(tmp_path))
        said, _ = second.communicate(timeout=_SECONDS)
    assert second.returncode == 2
    assert "in use by another memtune run" in said
