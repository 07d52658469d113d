"""Trained and total samples of a training, under every integration.

A step takes 8 samples, and no epoch is a multiple of that. Evaluations do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import small_trainings

from memtune.wire.report import Ending
from memtune_runner.checkpoints import newest

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
PLAN = "fp32-ddp-none-mb2x4"
BEGINS_AGAIN = (
    "the resumed script seems to have trained samples twice: it began with epoch 0, not 1. If its loop counts from "
)


@pytest.fixture(autouse=True)
def _launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launched")
    monkeypatch.setenv("SAVES_IN", str(tmp_path / "saves"))


def run(
    script: Path, integration: str, directory: Path, arguments: Sequence[str], **variables: str
) -> small_trainings.Outcome:
    plan = variables.pop("plan", PLAN)
    outcome = small_trainings.run(script, plan, directory, 1, arguments, INTEGRATION=integration, **variables)[0]
    assert outcome.report.ending is Ending.SUCCEEDED, outcome.output[-3000:]
    return outcome


def samples(outcome: small_trainings.Outcome) -> tuple[int | None, int | None]:
    """Return trained and total samples."""
    return outcome.report.trained_samples, outcome.report.total_samples


@pytest.mark.parametrize(
    ("arguments", "trained", "total"),
    [
        ([], 42, 42),
        (["--drop-last"], 40, 40),
        (["--stop-after", "4"], 29, 42),
        (["--epochs", "2", "1"], 63, 63),
        (["--stream", "--stop-after", "4"], 32, 48),
        (["--stream", "--ends"], 42, 42),  # two passes, whose last step has 5 samples
        (["--stream", "--ends", "--own-step"], 42, 42),
    ],
)
def test_samples_of_transformers_trainer_are_counted(
    arguments: list[str], trained: int, total: int, tmp_path: Path
) -> None:
    outcome = run(PROGRAMS / "trainer_lengths.py", "hf-trainer", tmp_path, arguments)
    assert samples(outcome) == (trained, total)


def test_each_rank_of_a_trainer_reports_its_samples(tmp_path: Path) -> None:
    script = PROGRAMS / "trainer_lengths.py"
    outcomes = small_trainings.run(script, "fp32-ddp-none-mb2x2", tmp_path, 2, (), INTEGRATION="hf-trainer")
    # 21 rows are padded to 6 batches of 2 on each rank.
    assert [samples(each) for each in outcomes] == [(24, 24), (24, 24)], outcomes[0].output[-3000:]


@pytest.mark.parametrize("arguments", [["--max-steps", "4"], ["--stream", "--epochs", "2"], []])
def test_a_trainer_that_resumes_from_its_last_step_trains_nothing_more(arguments: list[str], tmp_path: Path) -> None:
    script, saves = PROGRAMS / "trainer_lengths.py", tmp_path / "saves"
    variables = {"CHECKPOINT_PATH": str(saves)}
    whole = run(script, "hf-trainer", tmp_path, arguments, **variables, ATTEMPT="0")
    found = newest(saves)
    assert found is not None
    assert found.manifest.step == whole.report.steps, "it has failed behind its training, such as in an evaluation"
    variables |= {"RESUME_FROM": str(found.directory), "RESUME_SAMPLES": str(found.manifest.samples), "ATTEMPT": "1"}
    again = run(script, "hf-trainer", tmp_path, arguments, **variables)
    assert again.report.steps == 0, again.output[-3000:]
    assert samples(again) == samples(whole)
    last = whole.report.steps
    assert again.output.count(f"memtune: the training was already complete, with step {last} of {last}") == 1
    assert "already complete" not in whole.output


def test_only_the_first_of_a_trainers_trainings_is_resumed(tmp_path: Path) -> None:
    script, saves = PROGRAMS / "trainer_lengths.py", tmp_path / "saves"
    variables = {"CHECKPOINT_PATH": str(saves)}
    first = run(script, "hf-trainer", tmp_path, ["--epochs", "2", "3"], **variables, ATTEMPT="0")
    assert first.output.count("of several calls of Trainer.train only the first") == 1, first.output[-3000:]
    found = newest(saves)
    assert found is not None
    assert found.directory == saves / "call-1" / "checkpoint-6", "the later call saved later"
    variables |= {"RESUME_FROM": str(found.directory.with_name("checkpoint-4")), "RESUME_SAMPLES": "32", "ATTEMPT": "1"}
    again = run(script, "hf-trainer", tmp_path, ["--epochs", "2", "3"], **variables)
    assert "call 1 came to step 6 of 6" in again.output
    assert "call 2 came to step 9 of 9" in again.output
    assert again.report.steps == 2 + 9
    assert samples(again) == (105, 105)


def test_a_search_for_hyperparameters_is_not_resumed_but_the_training_behind_it_is_saved(tmp_path: Path) -> None:
    script, saves = PROGRAMS / "trainer_lengths.py", tmp_path / "saves"
    variables = {"CHECKPOINT_PATH": str(saves)}
    whole = run(script, "hf-trainer", tmp_path, ["--trials", "2"], **variables, ATTEMPT="0")
    assert whole.report.steps == 3 * 6
    of_trials = list(saves.glob("call-1/run-*/checkpoint-*"))
    assert of_trials
    assert not any((each / "memtune-manifest.json").exists() for each in of_trials)
    found = newest(saves)
    assert found is not None
    assert found.directory == saves / "call-1" / "checkpoint-6"
    variables |= {"RESUME_FROM": str(found.directory), "RESUME_SAMPLES": str(found.manifest.samples), "ATTEMPT": "1"}
    (again,) = small_trainings.run(script, PLAN, tmp_path, 1, ["--trials", "2"], INTEGRATION="hf-trainer", **variables)
    assert (again.report.ending, again.report.steps) == (Ending.BAD_INPUT, 0)
    assert "search for hyperparameters" in again.report.message


@pytest.mark.parametrize("kind", ["train", "probe"])
def test_the_trials_of_a_search_have_the_batches_of_the_plan(kind: str, tmp_path: Path) -> None:
    arguments = ["--trials", "2", "--batches"]
    outcome = run(PROGRAMS / "trainer_lengths.py", "hf-trainer", tmp_path, arguments, RUN_KIND=kind)
    expected = (
        "memtune: the search for hyperparameters chooses gradient_accumulation_steps and per_device_train_batch_size"
    )
    assert outcome.output.count(expected) == 1, outcome.output[-3000:]
    assert outcome.report.applied.micro_batch == 2
    if kind == "train":
        assert outcome.report.steps == 3 * 6


def test_later_trainings_in_the_same_directory_leave_the_first_ones_checkpoints_alone(tmp_path: Path) -> None:
    script, saves = PROGRAMS / "trainer_lengths.py", tmp_path / "saves"
    arguments, variables = ["--share", "--epochs", "2", "2", "1"], {"CHECKPOINT_PATH": str(saves)}
    run(script, "hf-trainer", tmp_path, arguments, **variables, ATTEMPT="0")
    found = newest(saves)
    assert found is not None
    assert found.directory == saves / "checkpoint-6", "the second training saved under the same name"
    variables |= {"RESUME_FROM": str(found.directory), "RESUME_SAMPLES": "48", "ATTEMPT": "1"}
    again = run(script, "hf-trainer", tmp_path, [*arguments, "--resume", str(found.directory)], **variables)
    assert "call 2 came to step 6 of 6" in again.output
    assert again.report.steps == 0 + 6 + 3, "the later trainings are made anew"


@pytest.mark.parametrize(
    ("arguments", "trained", "total", "own_batch"),
    [
        ([], 58, 58, 8),
        (["--max-steps", "3"], 24, 58, 8),  # the rest of the epoch
        (["--epochs", "2", "--batch-size", "2"], 116, 116, 4),
        (["--stream", "--max-steps", "5"], 40, None, 8),
        (["--own-accumulation", "--batch-size", "2", "--accumulation", "4"], 58, 58, None),
        (["--epochs", "3", "--max-steps", "3", "--all-epochs"], 24, 58, 8),
        (["--listed"], 56, None, 8),  # accelerate does not see the end of a list, even without a plan
    ],
)
def test_samples_of_a_loop_with_accelerate_are_counted(
    arguments: list[str], trained: int, total: int | None, own_batch: int | None, tmp_path: Path
) -> None:
    outcome = run(PROGRAMS / "language_modeling.py", "accelerate", tmp_path, arguments)
    assert samples(outcome) == (trained, total)
    assert outcome.report.own_batch == own_batch


def test_the_length_of_a_loop_with_accelerate_is_known_only_at_its_end(tmp_path: Path) -> None:
    arguments = ["--micro-steps", "15"]
    (outcome,) = small_trainings.run(
        PROGRAMS / "language_modeling.py", PLAN, tmp_path, 1, arguments, INTEGRATION="accelerate"
    )
    assert outcome.report.ending is Ending.BAD_INPUT, "it counts batches, and has left the last step undone"
    assert samples(outcome) == (24, None)


@pytest.mark.parametrize("step", [3, 10, 16])
def test_a_resumed_loop_with_accelerate_counts_earlier_samples(step: int, tmp_path: Path) -> None:
    script, saves = PROGRAMS / "language_modeling.py", tmp_path / "saves"
    variables = {"CHECKPOINT_PATH": str(saves)}
    arguments = ["--epochs", "2", "--save-every", str(step), "--output-dir", str(saves)]
    run(script, "accelerate", tmp_path, arguments, **variables, ATTEMPT="0", plan="fp32-ddp-none-mb4x2")
    variables |= {"RESUME_FROM": str(saves / f"step_{step}"), "RESUME_SAMPLES": str(step * 8), "ATTEMPT": "1"}
    again = run(script, "accelerate", tmp_path, [*arguments, "--resume-from", variables["RESUME_FROM"]], **variables)
    assert (again.report.steps, samples(again)) == (16 - step, (116, 116))


def test_a_loop_that_skips_trained_batches_does_not_count_them_twice(tmp_path: Path) -> None:
    script, saves = PROGRAMS / "skips_by_hand.py", tmp_path / "saves"
    variables = {"CHECKPOINT_PATH": str(saves)}
    first = run(script, "accelerate", tmp_path, (), **variables, ATTEMPT="0")
    variables |= {"RESUME_FROM": str(saves / "step-4"), "RESUME_SAMPLES": "32", "ATTEMPT": "1"}
    again = run(script, "accelerate", tmp_path, (), **variables)
    assert (samples(first), samples(again)) == ((32, 64), (64, 64))


def test_a_loop_that_had_made_all_its_steps_may_leave_again_at_once(tmp_path: Path) -> None:
    script, saves = PROGRAMS / "language_modeling.py", tmp_path / "saves"
    variables = {"CHECKPOINT_PATH": str(saves), "ATTEMPT": "0"}
    arguments = ["--max-steps", "3", "--save-every", "3", "--output-dir", str(saves)]
    first = run(script, "accelerate", tmp_path, arguments, **variables)
    assert (first.report.steps, first.report.checkpoint_samples, samples(first)) == (3, 24, (24, 58))
    variables |= {"RESUME_FROM": str(saves / "step_3"), "RESUME_SAMPLES": "24", "ATTEMPT": "1"}
    again = run(script, "accelerate", tmp_path, [*arguments, "--resume-from", str(saves / "step_3")], **variables)
    assert (again.report.steps, again.report.resumed_samples, again.report.trained_samples) == (0, 24, 24)


@pytest.mark.parametrize(
    ("kind", "trained", "total", "own_batch"),
    [("epochs", 42, 42, 20), ("early", 29, 42, 20), ("finder", 8, 8, 2), ("tuner", 8, 8, 2)],
)
def test_samples_of_lightnings_trainer_are_counted(
    kind: str, trained: int, total: int, own_batch: int, tmp_path: Path
) -> None:
    plan = PLAN if kind in ("epochs", "early") else "fp32-ddp-none-mb2x1"
    outcome = run(PROGRAMS / "lightning_fits.py", "lightning", tmp_path, [kind], plan=plan)
    assert samples(outcome) == (trained, total)
    assert outcome.report.own_batch == own_batch


@pytest.mark.parametrize(
    ("name", "integration", "plan", "trained", "own_batch"),
    [
        ("lightning_fabric.py", "lightning", "fp32-ddp-none-mb8x1", 128, 16),
        ("lightning_fabric.py", "lightning", PLAN, 128, None),
        ("ddp_loop.py", "env", "bf16-ddp-none-mb8x1", 256, None),
    ],
)
def test_the_length_of_a_plain_loop_is_unknown(
    name: str, integration: str, plan: str, trained: int, own_batch: int | None, tmp_path: Path
) -> None:
    saves = str(tmp_path / "saves")
    outcome = run(small_trainings.SCRIPTS / name, integration, tmp_path, (), CHECKPOINT_PATH=saves, plan=plan)
    assert samples(outcome) == (trained, None)
    assert outcome.report.own_batch == own_batch


@pytest.mark.parametrize(
    ("library", "integration", "plan", "samples_per_step"),
    [
        ("trainer", "hf-trainer", PLAN.replace("mb2", "mb4"), 8),
        ("accelerate", "accelerate", PLAN.replace("mb2", "mb4"), 8),
        ("lightning", "lightning", PLAN.replace("mb2", "mb4"), 8),
        ("fabric", "lightning", PLAN.replace("mb2x4", "mb4x1"), 2),
    ],
)
def test_a_checkpoint_of_the_first_steps_counts_the_batches_that_the_script_makes(
    library: str, integration: str, plan: str, samples_per_step: int, tmp_path: Path
) -> None:
    # After two steps nobody has found out yet that they are no batches of the plan.
    script, saves = PROGRAMS / "own_batches.py", tmp_path / "saves"
    run(script, integration, tmp_path, [library, str(saves)], CHECKPOINT_PATH=str(saves), ATTEMPT="0", plan=plan)
    found = newest(saves)
    assert found is not None
    assert (found.manifest.step, found.manifest.samples) == (2, 2 * samples_per_step)


@pytest.mark.parametrize(("elsewhere", "steps"), [("checkpoint", 4), ("loop", 2), ("failed", 2)])
def test_a_checkpoint_has_the_samples_of_the_steps_that_the_trainer_counts(
    elsewhere: str, steps: int, tmp_path: Path
) -> None:
    script, saves, first = PROGRAMS / "trained_elsewhere.py", tmp_path / "saves", tmp_path / "first"
    if elsewhere == "checkpoint":
        run(script, "hf-trainer", tmp_path, ["loop", str(first)])
    words = [elsewhere, str(saves), str(first / "checkpoint-2")]
    run(script, "hf-trainer", tmp_path, words, CHECKPOINT_PATH=str(saves), ATTEMPT="0")
    found = newest(saves)
    assert found is not None
    assert (found.manifest.step, found.manifest.samples) == (steps, steps * 8)


def test_a_checkpoint_has_the_samples_of_short_steps_and_goes_on_from_its_step(tmp_path: Path) -> None:
    script, saves = PROGRAMS / "trainer_lengths.py", tmp_path / "saves"
    variables = {"CHECKPOINT_PATH": str(saves)}
    first = run(script, "hf-trainer", tmp_path, ["--stop-after", "4"], **variables, ATTEMPT="0")
    found = newest(saves)
    assert found is not None
    assert (found.manifest.step, found.manifest.samples, first.report.checkpoint_samples) == (4, 29, 29)
    variables |= {"RESUME_FROM": str(found.directory), "RESUME_STEP": "4", "RESUME_SAMPLES": "29", "ATTEMPT": "1"}
    again = run(script, "hf-trainer", tmp_path, (), **variables)
    assert (again.report.steps, again.report.resumed_samples, again.report.checkpoint_samples) == (2, 29, 42)
    assert samples(again) == (42, 42)


def test_a_loop_with_accelerate_skips_to_the_step_of_its_checkpoint(tmp_path: Path) -> None:
    script, saves = PROGRAMS / "language_modeling.py", tmp_path / "saves"
    variables = {"CHECKPOINT_PATH": str(saves)}
    arguments = ["--epochs", "2", "--save-every", "10", "--output-dir", str(saves)]
    run(script, "accelerate", tmp_path, arguments, **variables, ATTEMPT="0")
    found = newest(saves)
    assert found is not None
    assert (found.manifest.step, found.manifest.samples) == (10, 58 + 16), "the first epoch has eight steps"
    variables |= {"RESUME_FROM": str(saves / "step_10"), "RESUME_STEP": "10", "RESUME_SAMPLES": "74", "ATTEMPT": "1"}
    again = run(script, "accelerate", tmp_path, [*arguments, "--resume-from", variables["RESUME_FROM"]], **variables)
    assert (again.report.steps, samples(again)) == (6, (116, 116))


@pytest.mark.parametrize(
    ("how", "steps", "trained", "total", "expected"),
    [
        ("rightly", 3, 48, 48, ""),
        ("again", 6, 72, None, BEGINS_AGAIN),
        ("limited", 3, 48, 48, ""),
        ("while", 3, 48, 48, ""),
        # Those of three epochs resume rightly, but not all can be told from one that does not.
        ("checked", 6, 72, 72, ""),
        ("counted", 6, 72, None, BEGINS_AGAIN),
        ("left", 6, 72, None, BEGINS_AGAIN),
        (
            "scheduled",
            6,
            72,
            None,
            "the resumed script made all 6 optimizer steps of its learning-rate schedule, after",
        ),
    ],
)
def test_a_resumed_loop_that_restarts_at_its_first_epoch_is_reported(
    how: str,
    steps: int,
    trained: int,
    total: int | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, saves, plan = PROGRAMS / "begins_again.py", tmp_path / "saves", "fp32-ddp-none-mb4x2"
    variables = {"CHECKPOINT_PATH": str(saves), "plan": plan}
    monkeypatch.setenv("EPOCHS", "3" if how in ("checked", "counted", "left") else "2")
    monkeypatch.setenv("STOPS_AFTER", "1")
    first_how = how if how in ("checked", "counted") else "rightly"
    first = run(script, "accelerate", tmp_path, [first_how], **variables, ATTEMPT="0")
    assert first.report.checkpoint_samples == 24
    monkeypatch.delenv("STOPS_AFTER")
    variables |= {"RESUME_FROM": str(saves / "epoch_0"), "RESUME_SAMPLES": "24", "ATTEMPT": "1"}
    again = run(script, "accelerate", tmp_path, [how], **variables)
    assert (again.report.steps, samples(again)) == (steps, (trained, total)), again.output[-3000:]
    assert again.report.warnings.startswith(expected)
    assert bool(again.report.warnings) is bool(expected)


def test_a_resumed_stage_of_a_training_begins_at_its_first_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, saves, plan = PROGRAMS / "begins_again.py", tmp_path / "saves", "fp32-ddp-none-mb4x2"
    variables = {"CHECKPOINT_PATH": str(saves), "plan": plan}
    monkeypatch.setenv("STOPS_AFTER", "1")
    run(script, "accelerate", tmp_path, ["staged"], **variables, ATTEMPT="0")
    monkeypatch.delenv("STOPS_AFTER")
    variables |= {"RESUME_FROM": str(saves / "epoch_0"), "RESUME_SAMPLES": "48", "ATTEMPT": "1"}
    again = run(script, "accelerate", tmp_path, ["staged"], **variables)
    assert (again.report.steps, samples(again), again.report.warnings) == (6, (96, 96), "")


@pytest.mark.parametrize(("how", "steps", "is_told"), [("rightly", 3, False), ("again", 6, True)])
def test_a_resumed_loop_that_repeats_its_whole_schedule_is_reported(
    how: str, steps: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, saves = PROGRAMS / "begins_again.py", tmp_path / "saves"
    monkeypatch.setenv("KIND", "env")
    variables = {"CHECKPOINT_PATH": str(saves), "plan": "fp32-ddp-none-mb8x1"}
    monkeypatch.setenv("STOPS_AFTER", "1")
    first = run(script, "env", tmp_path, ["rightly"], **variables, ATTEMPT="0")
    assert (first.report.checkpoint_samples, first.report.warnings) == (24, "")
    monkeypatch.delenv("STOPS_AFTER")
    variables |= {"RESUME_FROM": str(saves / "epoch_0"), "RESUME_SAMPLES": "24", "ATTEMPT": "1"}
    again = run(script, "env", tmp_path, [how], **variables)
    assert again.report.steps == steps, again.output[-3000:]
    expected = (
        "the resumed script made all 6 optimizer steps of its learning-rate schedule, after the 3 of its checkpoint: "
    )
    assert again.report.warnings.startswith(expected) is is_told, again.report.warnings
