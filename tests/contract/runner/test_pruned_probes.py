"""Probes that cannot beat the best plan, or are steady, end early: on all ranks at once and like any other probe."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from small_trainings import PROBE, SCRIPTS, run

from memtune.model.plain import from_facts
from memtune.plans.plan import Plan
from memtune.wire.applied import mismatch
from memtune.wire.probe_pruning import Pruned
from memtune.wire.report import Ending

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
FACTS = {"hiddenSize": 64, "layers": 3, "heads": 4, "kvHeads": 2, "ffnSize": 128, "vocabSize": 256}
STEPS = 6
FAST, SMALL = {"PROBE_TARGET_TOKENS": str(10**15)}, {"PROBE_TARGET_BYTES": "1000000"}
BUILT_IN, HF, ACCELERATE, LIGHTNING, LOOP = (
    (PROGRAMS / "trainer_script.py", "env"),
    (SCRIPTS / "hf_trainer.py", "hf-trainer"),
    (SCRIPTS / "accelerate_loop.py", "accelerate"),
    (SCRIPTS / "lightning_trainer.py", "lightning"),
    (SCRIPTS / "ddp_loop.py", "env"),
)


@pytest.fixture(autouse=True)
def _launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launched")  # as the launcher sets it
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TRAINER_ARGUMENTS", "--steps 100")


@pytest.mark.parametrize(
    ("script", "plan", "world", "target", "why", "covered"),
    [
        (BUILT_IN, "fp32-ddp-none-mb2x4", 2, FAST, Pruned.SPEED, True),
        (BUILT_IN, "fp32-z2-none-mb2x2-bk1m", 2, SMALL, Pruned.MEMORY, True),
        (HF, "fp32-ddp-none-mb4x2", 2, FAST, Pruned.SPEED, True),
        (ACCELERATE, "fp32-ddp-none-mb4x2", 2, FAST, Pruned.SPEED, True),
        (LIGHTNING, "fp32-ddp-none-mb4x2", 2, FAST, Pruned.SPEED, True),
        (LIGHTNING, "fp32-ddp-none-mb4x2", 1, SMALL, Pruned.MEMORY, True),
        (LOOP, "bf16-ddp-none-mb4x2", 2, SMALL, Pruned.MEMORY, False),
        (LOOP, "bf16-ddp-none-mb4x2", 1, FAST, Pruned.SPEED, False),
    ],
)
def test_all_ranks_end_after_the_second_step_and_still_evaluate(
    script: tuple[Path, str], plan: str, world: int, target: dict[str, str], why: Pruned, covered: bool, tmp_path: Path
) -> None:
    path, integration = script
    variables = {**PROBE, "PROBE_STEPS": str(STEPS), "INTEGRATION": integration, **target}
    variables["ARCHITECTURE"] = json.dumps(asdict(from_facts(FACTS)))
    outcomes = run(path, plan, tmp_path, world, **variables)
    for outcome in outcomes:
        report = outcome.report
        assert (outcome.exit_code, report.ending) == (0, Ending.SUCCEEDED), outcome.output[-3000:]
        assert (report.pruned, report.steps) == (why, 2)
        assert mismatch(Plan.parse(plan), report.applied, world, is_probe=True) == ""
        assert bool(report.evaluation_covered) is covered
        assert [step.number for step in report.measured_steps] == [2]
        # The record of a step is rounded to microseconds.
        assert report.step_seconds == pytest.approx(report.measured_steps[0].seconds, abs=5.1e-7)
        assert report.measured_steps[0].device_bytes <= report.memory.peak_device_bytes
    assert "memtune: the probe ends after 2 steps" in outcomes[0].output


def test_a_probe_that_may_win_makes_all_of_its_steps(tmp_path: Path) -> None:
    variables = {"PROBE_TARGET_TOKENS": "1", "PROBE_TARGET_BYTES": str(2**40), "PROBE_STEPS": "3"}
    for outcome in run(SCRIPTS / "ddp_loop.py", "fp32-ddp-none-mb4x2", tmp_path, 2, **{**PROBE, **variables}):
        assert (outcome.report.steps, outcome.report.pruned) == (3, None), outcome.output[-3000:]
        assert [step.number for step in outcome.report.measured_steps] == [2, 3]


def test_all_ranks_end_once_the_steps_are_steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOWED_SCRIPT", str(SCRIPTS / "ddp_loop.py"))
    outcomes = run(PROGRAMS / "slow_optimizer.py", "fp32-ddp-none-mb4x2", tmp_path, 2, **{**PROBE, "PROBE_STEPS": "14"})
    first, second = (outcome.report for outcome in outcomes)
    assert (first.ending, first.pruned) == (Ending.SUCCEEDED, None), outcomes[0].output[-3000:]
    assert first.steps == second.steps in range(3, 7)
    *_, before, last = first.measured_steps
    assert before.seconds == pytest.approx(last.seconds, rel=0.02)
    assert f"the probe ends after {first.steps} steps: the last two are alike" in outcomes[0].output


@pytest.mark.parametrize("script", [HF, LIGHTNING])
def test_a_training_that_is_shorter_than_its_probe_still_evaluates_and_saves(
    script: tuple[Path, str], tmp_path: Path
) -> None:
    path, integration = script
    variables = {**PROBE, "PROBE_STEPS": "100", "INTEGRATION": integration}
    (outcome,) = run(path, "fp32-ddp-none-mb8x2", tmp_path, 1, **variables)
    report = outcome.report
    assert (outcome.exit_code, report.ending) == (0, Ending.SUCCEEDED), outcome.output[-3000:]
    assert (report.evaluation_covered, report.save_covered) == (True, True)
    assert report.steps in (3, 4)


def test_early_stopping_has_its_metric_in_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers' own demands the metric that its arguments choose where the best model is to be loaded.
    monkeypatch.setenv("SAVES_IN", str(tmp_path / "saves"))
    variables = {**PROBE, "INTEGRATION": "hf-trainer"}
    script = PROGRAMS / "trainer_lengths.py"
    (outcome,) = run(script, "fp32-ddp-none-mb4x2", tmp_path, 1, ["--patience", "1", "--epochs", "9"], **variables)
    report = outcome.report
    assert (report.ending, report.evaluation_covered, report.save_covered) == (Ending.SUCCEEDED, True, True), (
        outcome.output[-3000:]
    )
