"""Scripts that catch what ends a training: a run is not a success because nothing came through."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_trainings
from small_trainings import Outcome

from memtune.units import MIB
from memtune.wire.report import Ending, Phase

LOOP = Path(__file__).parents[2] / "support" / "programs" / "catching_loop.py"


def run(kind: str, directory: Path, plan: str = "fp32-ddp-none-mb4x1", **variables: str) -> Outcome:
    memory = str(16 * MIB)
    return small_trainings.run(
        LOOP, plan, directory, 1, (kind,), INTEGRATION="env", GPU_MEMORY_BYTES=memory, **variables
    )[0]


@pytest.mark.parametrize("kind", ["last", "exits", "evaluation within"])
def test_a_caught_out_of_memory_that_ends_the_training_ends_the_run(kind: str, tmp_path: Path) -> None:
    outcome = run(kind, tmp_path)
    assert outcome.report.ending is Ending.DEVICE_OOM, outcome.output
    assert outcome.report.message.startswith("the script caught an out-of-memory and made no optimizer step after it")
    assert outcome.report.exit_code == 85
    assert (outcome.report.phase is Phase.EVALUATION) is (kind == "evaluation within")


def test_a_caught_out_of_memory_that_the_training_goes_on_after_is_a_warning(tmp_path: Path) -> None:
    outcome = run("middle", tmp_path)
    assert (outcome.report.ending, outcome.report.steps) == (Ending.SUCCEEDED, 5), outcome.output
    assert outcome.report.warnings.startswith("the script caught an out-of-memory in phase optimizer-step and went on")


def test_a_caught_out_of_memory_of_an_evaluation_costs_no_training(tmp_path: Path) -> None:
    outcome = run("evaluation", tmp_path)
    assert "caught OutOfMemoryError" in outcome.output
    assert (outcome.report.ending, outcome.report.warnings) == (Ending.SUCCEEDED, "")


def test_a_caught_refusal_still_ends_the_run(tmp_path: Path) -> None:
    outcome = run("nothing", tmp_path, plan="bf16-ddp-none-mb4x1")
    assert "caught PlanNotAppliedError" in outcome.output
    assert (outcome.report.ending, outcome.exit_code) == (Ending.PLAN_NOT_APPLIED, 89)
    assert outcome.report.message.startswith("applied.computeDtype is float32, but plan bf16-ddp-none-mb4x1 asks")


def test_a_caught_refusal_is_raised_again_before_each_step(tmp_path: Path) -> None:
    outcome = run("catches all", tmp_path, plan="bf16-ddp-none-mb4x1")
    assert (outcome.report.ending, outcome.report.steps) == (Ending.PLAN_NOT_APPLIED, 3), outcome.output
    assert outcome.output.count("caught PlanNotAppliedError") == 3, "no batch is trained for nothing"


def test_an_out_of_memory_within_a_pass_that_ends_well_is_none_of_the_script(tmp_path: Path) -> None:
    """cuDNN, for one, takes a smaller workspace where there is no room for the one that it wants."""
    outcome = run("swallowed", tmp_path)
    assert (outcome.report.ending, outcome.report.warnings) == (Ending.SUCCEEDED, ""), outcome.output


def test_an_evaluation_that_falls_back_to_a_smaller_batch_ends_well(tmp_path: Path) -> None:
    outcome = run("falls back", tmp_path)
    assert outcome.report.ending is Ending.SUCCEEDED, outcome.output
    assert outcome.report.warnings.startswith("the script caught an out-of-memory in phase evaluation and went on")


def test_a_probe_does_not_fit_whose_script_goes_on_with_smaller_batches(tmp_path: Path) -> None:
    outcome = run("middle", tmp_path, RUN_KIND="probe", PROBE_STEPS="3")
    assert outcome.report.ending is Ending.DEVICE_OOM, outcome.output
