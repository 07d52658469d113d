"""Loops that save, shard or step in ways of their own, and what the run says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_trainings
from small_trainings import Outcome

from memtune.wire.report import Ending

LOOP = Path(__file__).parents[2] / "support" / "programs" / "own_saves_loop.py"


def run(kind: str, directory: Path, plan: str = "fp32-ddp-none-mb4x1", ending: Ending = Ending.SUCCEEDED) -> Outcome:
    kept = directory / "kept"
    kept.mkdir()
    outcome = small_trainings.run(LOOP, plan, directory, 1, (kind,), INTEGRATION="env", CHECKPOINT_PATH=str(kept))[0]
    assert outcome.report.ending is ending, outcome.output
    return outcome


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("kind", "ending"), [("untold", Ending.SUCCEEDED), ("out-of-memory", Ending.DEVICE_OOM)])
def test_saves_that_no_relaunch_finds_are_reported(kind: str, ending: Ending, tmp_path: Path) -> None:
    warnings = run(kind, tmp_path, ending=ending).report.warnings
    assert warnings.startswith("the script has saved, but no checkpoint that a relaunch resumes from")
    assert "checkpoint_saved" in warnings


def test_a_model_that_is_saved_when_the_training_is_over_is_no_mistake(tmp_path: Path) -> None:
    assert run("export", tmp_path).report.warnings == ""


def test_fsdp_that_shards_the_model_as_one_unit_is_not_taken_for_another_strategy(tmp_path: Path) -> None:
    report = run("fsdp", tmp_path, "fp32-fsdp-none-mb4x1").report
    assert (report.applied.backend, report.applied.sharding) == ("fsdp", None)
    assert "call fully_shard on each block" in report.warnings


def test_a_gan_trains_each_sample_once(tmp_path: Path) -> None:
    report = run("gan", tmp_path).report
    assert (report.applied.micro_steps, report.applied.samples_per_step) == (1, 4)
    assert (report.checkpoint_samples, report.trained_samples, report.warnings) == (24, None, "")
