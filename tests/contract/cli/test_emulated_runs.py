"""Several emulated runs at a time, with other processes in their place: their time limits, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_PROGRAM = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from memtune.plans.plan import Plan
from memtune_cli.input.emulated_forks import kill, started
from memtune_cli.input.emulated_job import _run
from memtune_cli.input.emulated_runs import Room, run_all

def begun(number, plan):
    file = f"run-{number}"
    run = f"import os, time; print('begun', flush=True); os.symlink(str(os.getpid()), {file!r}); "
    words = [sys.executable, "-c", f"{run}time.sleep({sys.argv[number + 1]})"]
    process = started(words, dict(os.environ), Path.cwd())
    return SimpleNamespace(
        plan=plan, host_bytes=None, kill=lambda: kill(process),
        ended=lambda limit, say: {"code": _run(process, limit, say)},
    )

plans = [Plan.parse(f"bf16-z{stage}-none-mb8x1-sdpa") for stage in (1, 2)]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in its background without
try:
    print(run_all(plans, begun, Room(lambda _: 0, 2, lambda: 1 << 40), int(sys.argv[1])), flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


def program(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _PROGRAM, *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory)


def test_each_run_has_its_own_time_limit(tmp_path: Path) -> None:
    out, err = program(tmp_path, "3", "0", "60").communicate(timeout=60)
    assert out == "[{'code': 0}, {'code': None}]\n"
    assert err == "begun\nbegun\n"


def test_ctrl_c_ends_all_runs(tmp_path: Path) -> None:
    process = program(tmp_path, "60", "50", "50")
    ends_at = time.monotonic() + 30
    while len(begun := list(tmp_path.glob("run-*"))) < 2:
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    for run in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(int(str(run.readlink())), 0)
