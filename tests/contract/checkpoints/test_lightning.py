"""Lightning checkpoints of trainings with several fits, or with ranks that differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import small_trainings

from memtune.wire.report import Ending
from memtune_runner.checkpoints import newest

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
PLAN = "fp32-ddp-none-mb2x1"


@pytest.fixture(autouse=True)
def _launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launched")
    monkeypatch.setenv("SAVES_IN", str(tmp_path / "own"))


def train(kind: str, directory: Path, attempt: int, **variables: str) -> small_trainings.Outcome:
    own = directory / f"ranks-{attempt}"
    own.mkdir()
    variables |= {"INTEGRATION": "lightning", "CHECKPOINT_PATH": str(directory / "store"), "ATTEMPT": str(attempt)}
    return small_trainings.run(PROGRAMS / "lightning_fits.py", PLAN, own, 1, [kind], **variables)[0]


def newest_in(directory: Path) -> dict[str, str]:
    """Return the newest checkpoint of a store, as the variables of a run that resumes from it."""
    found = newest(directory / "store")
    assert found is not None
    return {"RESUME_FROM": str(found.directory), "RESUME_SAMPLES": str(found.manifest.samples)}


def batches(outcome: small_trainings.Outcome) -> dict[str, tuple[int, int]]:
    """Return for each finished fit its trained batches and its last step."""
    found = re.findall(r"^(\w+): (\d+) batches to step (\d+)", outcome.output, re.MULTILINE)
    return {name: (int(count), int(step)) for name, count, step in found}


@pytest.mark.parametrize("kind", ["finder", "tuner"])
def test_steps_that_look_for_a_learning_rate_are_no_samples_of_the_training(kind: str, tmp_path: Path) -> None:
    outcome = train(kind, tmp_path, 0)
    assert outcome.exit_code == 0, outcome.output[-3000:]
    assert outcome.report.checkpoint_samples == 8, "four steps of two"
    assert outcome.report.steps == 24
    assert "only the first" not in outcome.output


def test_only_the_first_of_several_fits_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as failing:
        failing.setenv("FAILS", "yes")
        failed = train("folds", tmp_path, 0)
    assert failed.report.ending is Ending.ERROR, failed.output[-3000:]
    assert batches(failed) == {"first": (4, 4), "second": (4, 4)}
    assert failed.output.count("only the first") == 1, failed.output[-3000:]

    resume = newest_in(tmp_path)
    assert resume["RESUME_SAMPLES"] == "8"
    again = train("folds", tmp_path, 1, **resume)
    assert again.exit_code == 0, again.output[-3000:]
    assert batches(again) == {"first": (0, 4), "second": (4, 4)}


def test_a_fit_behind_the_tuner_resumes(tmp_path: Path) -> None:
    train("tuner", tmp_path, 0)
    store = tmp_path / "store"
    earlier = min(store.glob("memtune-step-*"))
    again = train("tuner", tmp_path, 1, RESUME_FROM=str(earlier), RESUME_SAMPLES="4")
    assert again.exit_code == 0, again.output[-3000:]
    assert batches(again) == {"first": (2, 4)}
    assert again.report.checkpoint_samples == 8


def test_ranks_that_were_given_the_checkpoint_save_as_the_first_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_trainings, "LIMIT_SECONDS", 90)
    plan = "fp32-ddp-none-mb1x1"
    variables = {"INTEGRATION": "lightning", "CHECKPOINT_PATH": str(tmp_path / "store")}

    def train_both(attempt: int, **more: str) -> list[small_trainings.Outcome]:
        own = tmp_path / f"ranks-{attempt}"
        own.mkdir()
        script = PROGRAMS / "fabric_broadcasts.py"
        return small_trainings.run(script, plan, own, 2, ATTEMPT=str(attempt), **variables, **more)

    assert [each.exit_code for each in train_both(0)] == [0, 0]
    again = train_both(1, **newest_in(tmp_path))
    assert [each.exit_code for each in again] == [0, 0], again[0].output[-3000:]
    assert again[0].report.checkpoint_samples == 12, "six before, and three steps of two"


def test_a_fabric_loop_that_finds_its_own_file_goes_on_from_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    variables = {"INTEGRATION": "lightning", "CHECKPOINT_PATH": str(tmp_path / "store")}

    def train_anew(attempt: int, **more: str) -> small_trainings.Outcome:
        own = tmp_path / f"ranks-{attempt}"
        own.mkdir()
        script = PROGRAMS / "fabric_finds_own.py"
        return small_trainings.run(script, PLAN, own, 1, ATTEMPT=str(attempt), **variables, **more)[0]

    whole = train_anew(0)
    assert "begins after step 0" in whole.output
    assert "tests step 1" in whole.output
    # Its own file of step 4 is newer: the run ended between the two saves.
    third = next((tmp_path / "store").glob("memtune-step-00000003-*"))
    again = train_anew(1, RESUME_FROM=str(third), RESUME_SAMPLES="6")
    assert again.exit_code == 0, again.output[-3000:]
    assert "begins after step 3" in again.output
    assert "tests step 1" in again.output, "what it loads after the training is its own"
    assert again.report.checkpoint_samples == 8
    (tmp_path / "own" / "step-4" / "state.pth").unlink()
    unknown = train_anew(2)
    assert "begins after step 3" in unknown.output
    assert "the samples before it are not counted; remove it to begin at step 0: " in unknown.report.warnings
    assert unknown.report.warnings.endswith("step-3/state.pth")
