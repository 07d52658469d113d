"""A training that differs from its plan ends after its first steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_trainings

from memtune.wire.report import Ending

LOOP = Path(__file__).parents[3] / "examples" / "scripts" / "ddp_loop.py"


@pytest.mark.parametrize("world", [1, 2])
def test_a_training_in_another_precision_is_ended_after_as_many_steps_as_a_probe_makes(
    world: int, tmp_path: Path
) -> None:
    for outcome in small_trainings.run(LOOP, "fp32-ddp-none-mb4x2", tmp_path, world, (), INTEGRATION="env"):
        assert (outcome.report.ending, outcome.report.exit_code) == (Ending.PLAN_NOT_APPLIED, 89)
        assert outcome.report.message.startswith("applied.computeDtype is bfloat16, but plan fp32-ddp-none-mb4x2 asks")
        assert outcome.report.steps == 3


def test_a_script_with_its_own_batch_size_is_reported_with_both_sizes(tmp_path: Path) -> None:
    outcome = small_trainings.run(LOOP, "bf16-ddp-none-mb4x2", tmp_path, 1, (), INTEGRATION="env", MICRO_BATCH="8")[0]
    assert outcome.report.message.startswith("the script's batch is 16, training.globalBatchSize 8"), outcome.output


def test_a_training_that_is_over_by_then_is_left_to_its_report(tmp_path: Path) -> None:
    outcome = small_trainings.run(LOOP, "fp32-ddp-none-mb8x16", tmp_path, 1, (), INTEGRATION="env")[0]
    assert outcome.report.ending is Ending.SUCCEEDED, outcome.output[-3000:]
    assert outcome.report.steps == 2
