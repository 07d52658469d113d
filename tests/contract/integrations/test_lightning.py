"""Lightning's Trainer and Fabric apply their plan, and reject in one line what cannot work."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from small_trainings import PROBE, SCRIPTS, assert_followed_plan, run

from memtune.wire.report import Ending

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"


@pytest.fixture(autouse=True)
def _launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launched")  # as the launcher sets it: Lightning must not start ranks
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize(
    ("plan", "world"),
    [
        ("fp16-ddp-none-mb4x2", 1),
        ("bf16-ddp-sel-mb4x2", 2),
        ("bf16-z2-full-mb4x2-bk1m", 1),
        ("fp32-z3-none-mb2x2-bk1m", 2),
        ("bf16-fsdp-full-mb4x2", 2),
        ("fp32-fsdpsgo-none-mb4x4", 1),
    ],
)
def test_the_trainer_follows_its_plan(plan: str, world: int, tmp_path: Path) -> None:
    outcomes = run(SCRIPTS / "lightning_trainer.py", plan, tmp_path, world, **PROBE, INTEGRATION="lightning")
    assert_followed_plan(outcomes, plan)
    report = outcomes[0].report
    assert (report.evaluation_covered, report.save_covered) == (True, True)


@pytest.mark.parametrize(("plan", "world"), [("bf16-ddp-full-mb4x2", 2), ("bf16-fsdp-none-mb4x2", 1)])
def test_fabric_follows_its_plan(plan: str, world: int, tmp_path: Path) -> None:
    outcomes = run(SCRIPTS / "lightning_fabric.py", plan, tmp_path, world, **PROBE, INTEGRATION="lightning")
    assert_followed_plan(outcomes, plan)
    assert outcomes[0].report.save_covered


def test_the_package_of_the_other_name_is_served_as_well(tmp_path: Path) -> None:
    text = (SCRIPTS / "lightning_trainer.py").read_text()
    script = tmp_path / "script.py"
    script.write_text(text.replace("import lightning\n", "import pytorch_lightning as lightning\n"))
    plan = "bf16-ddp-none-mb8x2"
    assert_followed_plan(run(script, plan, tmp_path, 1, **PROBE, INTEGRATION="lightning"), plan)


@pytest.mark.parametrize(
    ("mistake", "plan", "message"),
    [
        ("accumulates-by-epoch", "fp32-ddp-none-mb2x2", "callback GradientAccumulationScheduler"),
        ("steps-by-itself", "fp32-ddp-none-mb2x2", r"= False: .*; set tuning\.space\.microBatch \[4\]"),
        ("joint-setup", "fp32-fsdp-none-mb2x2", r"optimizer = fabric.setup_optimizers\(optimizer\)"),
        ("fabric", "fp32-z2-none-mb2x2", r"leave only ddp and fsdp in tuning\.space\.backends"),
    ],
)
def test_settings_that_contradict_the_plan_are_refused(mistake: str, plan: str, message: str, tmp_path: Path) -> None:
    (outcome,) = run(PROGRAMS / "lightning_mistakes.py", plan, tmp_path, 1, [mistake], INTEGRATION="lightning")
    assert outcome.report.ending is Ending.BAD_INPUT, outcome.output[-3000:]
    assert outcome.report.steps in (None, 0)
    assert re.search(message, outcome.report.message), outcome.report.message


@pytest.mark.parametrize("package", ["axolotl", "llamafactory", "ray.train"])
def test_a_framework_that_no_integration_reaches_is_refused_when_it_is_imported(package: str, tmp_path: Path) -> None:
    directory = tmp_path / "site"
    for part in range(len(package.split("."))):
        module = directory.joinpath(*package.split(".")[: part + 1])
        module.mkdir(parents=True)
        (module / "__init__.py").write_text("")
    (directory / "script.py").write_text(f"import {package}\nprint('it went on')\n")
    (outcome,) = run(directory / "script.py", "fp32-ddp-none-mb2x2", tmp_path, INTEGRATION="env")
    assert outcome.report.ending is Ending.BAD_INPUT
    assert outcome.report.message.startswith("integration env does not support")
    assert "it went on" not in outcome.output


@pytest.mark.parametrize(
    ("name", "optimizer", "step", "expected"),
    [
        ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply", "Keras steps optimizers of its own"),
        ("fastai.optimizer", "Optimizer", "step", "fastai steps an optimizer of its own"),
    ],
)
def test_a_step_that_nobody_would_see_is_refused_before_it_is_made(
    name: str, optimizer: str, step: str, expected: str, tmp_path: Path
) -> None:
    module = (tmp_path / "site").joinpath(*name.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    module.write_text(f"class {optimizer}:\n    def {step}(self): print('it stepped')\n")
    script = tmp_path / "site" / "script.py"
    script.write_text(f"from {name} import {optimizer}\n{optimizer}().{step}()\n")
    (outcome,) = run(script, "fp32-ddp-none-mb2x2", tmp_path, INTEGRATION="env")
    assert (outcome.report.ending, outcome.report.exit_code) == (Ending.BAD_INPUT, 88)
    assert outcome.report.message.startswith(expected)
    assert "it stepped" not in outcome.output


def test_a_script_that_can_do_without_such_a_framework_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the Trainer saves there
    (tmp_path / "axolotl.py").write_text("")
    script = tmp_path / "script.py"
    text = (PROGRAMS / "lightning_mistakes.py").read_text()
    script.write_text(
        text.replace("import lightning\n", "try:\n    import axolotl\nexcept ImportError:\n    import lightning\n")
    )
    (outcome,) = run(script, "fp32-ddp-none-mb2x2", tmp_path, 1, ["none"], INTEGRATION="lightning")
    assert outcome.report.ending is Ending.SUCCEEDED, outcome.output[-3000:]
