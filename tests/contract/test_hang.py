"""A worker that stands still is ended, with the stacks of its threads in the log and a report that says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from watched import ROOT

from memtune.report import Ending, read_report
from memtune_runner.ranks import Rank, report_path

HANGING = """
import time, torch
from memtune.plan import Plan
from memtune.report import Device
from memtune.run import RunKind
from memtune.units import MIB
from memtune_runner.ranks import Rank
from memtune_runner.settings import Settings
from memtune_runner.watch import watching
from memtune_runner.watch.hang import HangLimits

def stand_still():
    time.sleep(600)

plan = Plan.parse("fp32-ddp-none-mb4x1")
settings = Settings(plan, RunKind.TRAIN, "env", 4, 8, device=Device.VIRTUAL, gpu_memory_bytes=64 * MIB)
limits = HangLimits(first_step_seconds=300, least_seconds=1, steps=0, period_seconds=0.1)
with watching(settings, Rank(0, 0, 1, 1, 0), hang_limits=limits):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    stand_still()
"""


def test_a_hang_ends_with_its_own_code_and_the_stacks_in_the_log(tmp_path: Path) -> None:
    path = f"{ROOT / 'core'}:{ROOT / 'runner'}"
    environment = {"MEMTUNE_RANK_DIRECTORY": str(tmp_path), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", HANGING], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 87, done.stderr
    assert "memtune: rank 0 hangs: no optimizer step ended for" in done.stderr
    assert "in stand_still" in done.stderr
    report = read_report(report_path(tmp_path, Rank(0, 0, 1, 1, 0)).read_bytes())
    assert (report.ending, report.exit_code, report.steps) == (Ending.HUNG, 87, 2)
