"""The runs of several plans of a job, forked from one Python: what is measured is what new Pythons measure."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from emulated_gpu_requirements import PYTHON
from emulated_runs import example

from memtune.plans.plan import Plan
from memtune_cli.commands import emulate_job
from memtune_cli.input import emulated_forks

_ROOT = Path(__file__).resolve().parents[2]
_TRAINING = {"globalBatchSize": 16, "sequenceLength": 32, "optimizer": "adamw", "attention": "sdpa"}
_PLANS = (
    *("fp32-fsdp-full-mb4x2-sdpa", "bf16-z3-full-mb4x2-sdpa"),
    *("bf16-fsdp-none-mb8x1-sdpa-exp", "bf16-ddp-full-mb8x1-sdpa-exp"),
)
# What two runs of the same plan differ in as well.
_OF_THE_MACHINE = ("seconds", "hostPeakBytes", "history")
_HOST_BYTES = 64 << 20


_LOOP = """import os
import torch

assert os.environ["ROWS"] in (os.environ["MEMTUNE_MICRO_BATCH"], "8")
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
print("torch is at", id(torch))
while True:
    for _ in range(int(os.environ["MEMTUNE_ACCUMULATION"])):
        model(torch.ones(int(os.environ["MEMTUNE_MICRO_BATCH"]), 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the emulated GPU."""
    monkeypatch.chdir(_ROOT)
    monkeypatch.setenv("VIRTUAL_ENV", str(PYTHON.parents[1]))
    monkeypatch.setenv("PATH", f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(_ROOT / each) for each in ("core", "runner")))


def measured(job: Path, plans: tuple[str, ...]) -> list[dict[str, Any]]:
    case = emulate_job._case(Namespace(words=[str(job)], gpu=None))
    place = job.parent / f"of-{plans[0]}-{len(plans)}"
    place.mkdir()
    asked = Namespace(snapshot=None, time_limit=300, parallel=None)
    return emulate_job._emulated(case, [Plan.parse(each) for each in plans], asked, place)


def test_forks_measure_the_same_as_new_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Mock(side_effect=emulated_forks.started)
    monkeypatch.setattr(emulated_forks, "started", start)
    job = example(tmp_path, "hf-trainer", {"gpusPerNode": 2}, training=_TRAINING)
    forked = measured(job, _PLANS)
    assert not start.called
    for plan, fork in zip(_PLANS, forked, strict=True):
        (alone,) = measured(job, (plan,))
        assert fork["outcome"] == "completed", fork
        assert abs(fork["hostPeakBytes"] - alone["hostPeakBytes"]) < _HOST_BYTES
        for each in (fork, alone):
            # Without directories: each call has a copy of the runner in its own.
            sites = each["history"]["largest"]
            each["largest"] = [(Path(site["line"]).name, site["tensors"], site["bytes"]) for site in sites]
            for name in _OF_THE_MACHINE:
                del each[name]
        assert fork == alone
    assert start.call_count == len(_PLANS)


@pytest.mark.parametrize(("rows", "is_forked"), [("8", True), ("$(MEMTUNE_MICRO_BATCH)", False)])
def test_a_plan_in_another_environment_than_that_of_the_imports_has_a_new_python(
    rows: str, is_forked: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "loop.py"
    script.write_text(_LOOP)
    container = {"name": "trainer", "image": "own:1", "command": ["python", str(script)]}
    template = {"spec": {"containers": [{**container, "env": [{"name": "ROWS", "value": rows}]}]}}
    job = example(tmp_path, "env", {}, training=_TRAINING, template=template)
    first, second = measured(job, ("bf16-ddp-none-mb8x2-sdpa", "bf16-ddp-none-mb4x4-sdpa"))
    assert (first["outcome"], second["outcome"]) == ("completed", "completed")
    # The kernel gives each new process other addresses.
    assert (len(set(re.findall(r"torch is at (\d+)", capfd.readouterr().err))) == 1) is is_forked
