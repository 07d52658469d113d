"""Runs as processes: an earlier call's unfinished work is redone, and nothing outlives its run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memtune.wire.report import Ending, Report
from memtune_operator.local.runs import LocalRun

SLEEPER = "import time; time.sleep(600)"


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def ended(run: LocalRun) -> None:
    while (seen := run.observe()) is None or seen.exit_code is None:
        await asyncio.sleep(0.02)


def test_a_start_that_failed_can_be_made_again(tmp_path: Path) -> None:
    async def life() -> None:
        run = LocalRun(tmp_path / "tiny-probe-1", lambda: None)
        try:
            await run.start([str(tmp_path / "absent")], {}, tmp_path)
        except FileNotFoundError:
            again = LocalRun(tmp_path / "tiny-probe-1", lambda: None)
            await again.start([sys.executable, "-c", ""], {}, tmp_path)
            await asyncio.wait_for(ended(again), 60)
            seen = again.observe()
            assert seen is not None
            assert seen.exit_code == 0

    asyncio.run(life())


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from memtune_operator.local.runs import LocalRun

spawn = asyncio.create_subprocess_exec

async def killed(*words, **options):
    await spawn(*words, **options)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.create_subprocess_exec = killed
words = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
asyncio.run(LocalRun(Path(sys.argv[1]), lambda: None).start(words, {}, Path.cwd()))
"""


def test_an_unrecorded_process_is_found(tmp_path: Path) -> None:
    """The next call would start a second one."""
    directory = tmp_path / "tiny-train-1"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(directory)], env=path, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    log, deadline = directory / "log", time.monotonic() + 60
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int(log.read_text())
    try:
        assert is_alive(pid)
        asyncio.run(LocalRun(directory, lambda: None).stop(5))
        assert not is_alive(pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_could_not_be_recorded_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "tiny-train-1"
    spawn = asyncio.create_subprocess_exec

    async def spawn_as_the_disk_becomes_full(*words: str, **options: Any) -> asyncio.subprocess.Process:
        process = await spawn(*words, **options)
        (directory / ".process.json.new").mkdir()
        return process

    async def life() -> None:
        run = LocalRun(directory, lambda: None)
        # Nor can it be found by its variables.
        await run.start(["env", "-i", sys.executable, "-c", f"print(flush=True); {SLEEPER}"], {}, tmp_path)
        while not (directory / "log").read_text():
            await asyncio.sleep(0.02)
        seen = run.observe()
        assert seen is not None
        assert seen.exit_code is None
        await run.stop(60)
        await asyncio.wait_for(ended(run), 60)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn_as_the_disk_becomes_full)
    asyncio.run(life())


def test_processes_of_a_run_end_with_it(tmp_path: Path) -> None:
    child = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]).pid, flush=True)"

    async def life() -> None:
        run = LocalRun(tmp_path / "tiny-probe-1", lambda: None)
        await run.start([sys.executable, "-c", child], dict(os.environ), tmp_path)
        await asyncio.wait_for(ended(run), 60)

    asyncio.run(life())
    pid = int((tmp_path / "tiny-probe-1" / "log").read_text())
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline, "the child of an ended run goes on"
        time.sleep(0.02)


def test_the_log_of_an_unrecorded_run_is_read_to_its_end(tmp_path: Path) -> None:
    async def read() -> list[str]:
        return [line async for line in LocalRun(tmp_path, lambda: None).log(follow=True)]

    (tmp_path / "process.json").write_text(json.dumps({"at": 1.0}))
    (tmp_path / "log").write_text("step 1\n")
    assert asyncio.run(read()) == ["step 1"]


def test_the_report_decides_how_an_unwatched_run_ended(tmp_path: Path) -> None:
    run = LocalRun(tmp_path, lambda: None)
    assert not run.adopt_report()
    assert run.observe() is None
    (tmp_path / "message").write_text(json.dumps(Report(Ending.TERMINATED, 143, checkpoint_samples=640).to_json()))
    assert run.adopt_report()
    seen = run.observe()
    assert seen is not None
    assert isinstance(seen.report, Report)
    assert (seen.phase, seen.exit_code, seen.report.checkpoint_samples) == ("Failed", 143, 640)
    assert seen.finished_at_seconds is not None
