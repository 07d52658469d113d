"""What docs/integrations.md shows runs as it stands: its scripts also without MemTune, its jobs as they are read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_ranks import global_batches, settings_of
from small_trainings import run
from torch.nn import functional

from memtune.api.load import load_job
from memtune.plans.plan import Plan
from memtune_cli.main import main
from memtune_runner import initialize

PAGE = (Path(__file__).parents[3] / "docs" / "integrations.md").read_text()
# What the page leaves to the script: a model, data, and a loop around what it shows.
BEFORE = """
import json
import os
import sys
from pathlib import Path

if not os.environ.get("MEMTUNE_RUN"):
    sys.modules["memtune_runner"] = None  # not installed

import torch
from torch.utils.data import DataLoader

data = torch.randn(64, 4)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """
for step, batch in zip(range(1, 4), loader):
    for micro in batch.split(micro_batch):
        (model(micro).square().mean() / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
    samples += len(batch)
"""


def blocks(heading: str, language: str) -> list[str]:
    """The code of one section, without its own sections."""
    section = re.split(r"^#+ ", PAGE.partition(f"\n{heading}\n")[2], flags=re.MULTILINE)[0]
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)
    return found


def saving_script(directory: Path) -> Path:
    numbers, begin, save = blocks("## `env`", "python")
    script = directory / "train.py"
    indented = "".join(f"    {line}" for line in save.splitlines(keepends=True))
    script.write_text(f"{BEFORE}{numbers}{begin}{LOOP}{indented}")
    return script


def test_a_script_that_is_changed_for_env_runs_alone(tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MEMTUNE_")}
    subprocess.run([sys.executable, str(saving_script(tmp_path))], cwd=tmp_path, env=own, check=True)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [f"alone-step-{n}" for n in (1, 2, 3)]


def test_a_script_that_is_changed_for_env_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    script, plan = saving_script(tmp_path), "fp32-ddp-none-mb4x2"
    variables = {"PLAN": json.dumps(Plan.parse(plan).to_json()), "CHECKPOINT_PATH": str(tmp_path / "saves")}
    ((_, first, said),) = run(script, plan, tmp_path, 1, RUN="own-train-1", ATTEMPT="1", **variables)
    assert (first.steps, first.checkpoint_samples, first.warnings) == (3, 24, ""), said[-3000:]
    variables |= {"RESUME_FROM": str(tmp_path / "saves" / "own-train-1-step-3"), "RESUME_SAMPLES": "24"}
    ((_, again, said),) = run(script, plan, tmp_path, 1, RUN="own-train-2", ATTEMPT="2", **variables)
    assert (again.resumed_samples, again.checkpoint_samples) == (24, 48), said[-3000:]


def test_a_script_in_the_manner_of_nanogpt_still_runs_alone() -> None:
    (code,) = blocks("### A script in the manner of nanoGPT", "python")
    assert "environ[" not in code
    compile(code, "train.py", "exec")


def spec_of(*texts: str) -> dict[str, Any]:
    return {name: block for text in texts for name, block in yaml.safe_load(text).items()}


def planned(spec: dict[str, Any], directory: Path) -> int:
    job = {"apiVersion": "memtune.dev/v1alpha1", "kind": "MemoryTunedJob", "metadata": {"name": "shown"}, "spec": spec}
    load_job(job)
    (directory / "job.yaml").write_text(yaml.safe_dump(job))
    return main(["plan", str(directory / "job.yaml")])


def test_the_job_of_a_script_in_the_manner_of_nanogpt_has_plans_that_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described, started = blocks("### A script in the manner of nanoGPT", "yaml")
    container = {"name": "trainer", "image": "registry.example.com/training", **yaml.safe_load(started)}
    rest = {
        "resources": {"gpusPerNode": 8, "gpuProduct": "a100-80gb"},
        "template": {"spec": {"containers": [container]}},
    }
    assert planned({**spec_of(described), **rest}, tmp_path) == 0
    assert "Plans that fit" in capsys.readouterr().out


def test_the_job_of_a_script_in_the_manner_of_run_clm_no_trainer_has_plans_that_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = blocks("## `accelerate`", "yaml")
    assert planned(spec_of(shown), tmp_path) == 0
    assert "Plans that fit" in capsys.readouterr().out


@pytest.mark.parametrize("plan", ["fp32-ddp-full-mb4x2-fl", "fp32-fsdp-full-mb4x2-fl"])
@pytest.mark.usefixtures("one_thread")
def test_the_loss_in_parts_is_the_mean_loss_under_ddp_and_fsdp(plan: str) -> None:
    (code,) = (each for each in blocks("## `sdk`", "python") if "with loss_in_parts" in each)
    shown: dict[str, Any] = {}
    exec(compile(code, "train.py", "exec"), shown)
    model = shown["Model"]()
    batch = next(global_batches())
    expected = functional.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten()).item()
    engine = initialize(model, fused_loss=shown["fused_loss"], settings=settings_of(Plan.parse(plan), 1))
    for micro in engine.micro_batches(batch):
        engine.backward(engine(micro))
    assert float(engine.step().loss) == pytest.approx(expected, rel=1e-5)
