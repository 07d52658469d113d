"""Runs as processes: what an earlier call left half-made is made anew, and nothing outlives its run."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from memtune_operator.local_runs import LocalRun

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


def test_what_a_run_started_ends_with_it(tmp_path: Path) -> None:
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
