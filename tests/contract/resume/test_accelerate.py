"""accelerate's save_state, interrupted and overwritten, and checkpoints that a script writes itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_trainings
import torch

import memtune_runner
from memtune.plans.plan import Plan
from memtune.plans.resume import Format
from memtune.wire.report import Device, Ending
from memtune.wire.run import RunKind
from memtune_runner.checkpoints import huggingface, last_completed, newest
from memtune_runner.rank import progress
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.progress import Progress, Trained
from memtune_runner.rank.settings import Settings

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
SAVES, LANGUAGE_MODELING = PROGRAMS / "accelerate_saves.py", PROGRAMS / "language_modeling.py"
TWICE = PROGRAMS / "accelerate_twice.py"


class InterruptedSaveError(Exception):
    """Ends a process during a save."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        plan=Plan.parse("fp32-ddp-none-mb4x2"),
        kind=RunKind.TRAIN,
        integration="accelerate",
        global_batch=8,
        sequence_length=8,
        device=Device.VIRTUAL,
        gpu_memory_bytes=1 << 30,
        checkpoint_path=tmp_path,
        resume_samples=80,
    )


class Job:
    """One process that trains with accelerate, wrapped as in a run."""

    def __init__(self, settings: Settings, patches: Patches, **project: Any) -> None:
        from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
        from accelerate.utils import ProjectConfiguration  # type: ignore[import-untyped]  # as above

        def trained() -> Trained:
            steps = settings.resumed_step + self.steps
            return Trained(steps, steps * settings.global_batch)

        self.steps = 0
        patches.undo()
        patches.wrap(Accelerator, "save_state", huggingface.accelerate_save(settings, trained, lambda _: True))
        patches.wrap(Accelerator, "load_state", huggingface.accelerate_load(settings, lambda _: True, lambda: False))
        self.accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(**project))
        model = torch.nn.Linear(2, 2)
        self.model, self.optimizer = self.accelerator.prepare(model, torch.optim.AdamW(model.parameters()))

    def save(self, output_dir: Path | None = None) -> str:
        self.steps += 1
        with torch.no_grad():
            self.model.weight.fill_(float(self.steps))
        return str(self.accelerator.save_state(output_dir))


@pytest.fixture
def patches() -> Iterator[Patches]:
    patches = Patches()
    yield patches
    patches.undo()


def _interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: Any, **__: Any) -> None:
        raise InterruptedSaveError

    monkeypatch.setattr(torch, "save", save)  # the optimizer and the random numbers; the weights are written before


def test_a_directory_that_is_overwritten_is_never_torn(
    settings: Settings, patches: Patches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(settings, patches)
    target = tmp_path / "state"
    assert job.save(target) == str(target)
    assert job.save(target) == str(target)
    last = last_completed()
    assert last is not None
    assert (last.directory, last.manifest.samples, last.manifest.format) == (target, 96, Format.ACCELERATE)
    with monkeypatch.context() as interrupting:
        _interrupt(interrupting)
        with pytest.raises(InterruptedSaveError):
            job.save(target)
    found = newest(tmp_path)
    assert found is not None
    assert (found.directory, found.manifest.samples) == (target, 96)

    again = Job(replace(settings, resume_from=target, resume_samples=96), patches)
    again.accelerator.load_state("wherever the script has looked")
    assert again.model.weight[0, 0] == 2
    again.save(target)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_kill_during_a_save_leaves_the_one_before_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAVES_IN", str(tmp_path / "saves"))
    monkeypatch.setenv("KILLED_AT", "2")
    variables = {"INTEGRATION": "accelerate", "ATTEMPT": "1", "CHECKPOINT_PATH": str(tmp_path / "saves")}
    with pytest.raises(AssertionError, match="left no report"):
        small_trainings.run(SAVES, "fp32-ddp-none-mb4x2", tmp_path, 1, (), **variables)
    found = newest(tmp_path / "saves")
    assert found is not None
    assert (found.directory.name, found.manifest.samples) == ("step-1", 8)
    assert (tmp_path / "saves" / "step-2").exists(), "the save that was killed had begun"


def test_a_relaunch_that_loads_nothing_ends_before_it_trains(tmp_path: Path) -> None:
    saves, plan = tmp_path / "saves", "fp32-ddp-none-mb4x2"
    variables = {"INTEGRATION": "accelerate", "CHECKPOINT_PATH": str(saves)}
    saving = ["--save-every", "2", "--output-dir", str(saves), "--max-steps", "4"]
    (first,) = small_trainings.run(LANGUAGE_MODELING, plan, tmp_path, 1, saving, **variables, ATTEMPT="1")
    assert (first.report.checkpoint_samples, first.report.resumed_samples) == (32, None), first.output[-3000:]
    variables |= {"ATTEMPT": "2", "RESUME_FROM": str(saves / "step_2"), "RESUME_SAMPLES": "16"}
    resuming = [*saving, "--resume-from", str(saves / "step_2")]
    (again,) = small_trainings.run(LANGUAGE_MODELING, plan, tmp_path, 1, resuming, **variables)
    assert (again.report.steps, again.report.resumed_samples) == (2, 16), again.output[-3000:]
    (unloaded,) = small_trainings.run(LANGUAGE_MODELING, plan, tmp_path, 1, [*resuming, "--no-load"], **variables)
    report = unloaded.report
    assert (report.ending, report.steps, report.resumed_samples) == (Ending.BAD_INPUT, 0, 0), unloaded.output[-3000:]
    assert "call accelerator.load_state(path)" in report.message


def test_the_names_that_accelerate_gives_go_on_after_a_relaunch_within_its_limit(
    settings: Settings, patches: Patches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = {"project_dir": str(tmp_path), "automatic_checkpoint_naming": True, "total_limit": 1}
    job = Job(settings, patches, **project)
    job.save()
    with monkeypatch.context() as interrupting:
        _interrupt(interrupting)
        with pytest.raises(InterruptedSaveError):
            job.save()
    found = newest(tmp_path)
    assert found is not None
    assert found.directory.name == "checkpoint_0", "the limit must not cost the only complete one"
    Job(settings, patches, **project).save()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint_1"]


def test_saves_after_a_relaunch_are_the_newest_though_others_were_rotated_away(
    settings: Settings, patches: Patches, tmp_path: Path
) -> None:
    project = {"project_dir": str(tmp_path), "automatic_checkpoint_naming": True, "total_limit": 2}
    for saves in (5, 3):
        job = Job(settings, patches, **project)
        for _ in range(saves):
            job.save()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint_6", "checkpoint_7"]


def test_a_script_reports_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "store" / "mine"
    own.mkdir(parents=True)
    (own / "weights").write_bytes(b"1")
    memtune_runner.checkpoint_saved(own, samples=24)
    assert newest(tmp_path / "store") is None, "without MemTune it does nothing"
    for name, value in {
        "PLAN": "fp32-ddp-none-mb4x2",
        "RUN_KIND": "train",
        "GLOBAL_BATCH": "8",
        "SEQUENCE_LENGTH": "8",
        "CHECKPOINT_PATH": str(tmp_path / "store"),
    }.items():
        monkeypatch.setenv(f"MEMTUNE_{name}", value)
    monkeypatch.setattr(progress, "now", lambda: Progress(steps=4, samples=24))
    memtune_runner.checkpoint_saved(own, samples=24)
    found = newest(tmp_path / "store")
    assert found is not None
    assert (found.manifest.samples, found.manifest.step, found.manifest.format) == (24, 4, Format.SCRIPT)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    memtune_runner.checkpoint_saved(elsewhere, samples=32)
    assert "outside of checkpoint.path, where no relaunch finds it" in capsys.readouterr().err
    with pytest.raises(BadInputError, match=r"checkpoint\.path itself, which each save would overwrite"):
        memtune_runner.checkpoint_saved(tmp_path / "store", samples=32)


def test_nothing_is_saved_over_the_place_of_all_checkpoints(settings: Settings, patches: Patches) -> None:
    job = Job(settings, patches)
    assert settings.checkpoint_path is not None
    (settings.checkpoint_path / "fence").touch()
    with pytest.raises(BadInputError, match=r"let the script save into a new directory below it"):
        job.accelerator.save_state(str(settings.checkpoint_path))
    assert (settings.checkpoint_path / "fence").exists()


@pytest.mark.parametrize("asked", [True, "output/checkpoint-6"])
def test_a_trainer_never_resumes_from_an_incomplete_checkpoint(
    asked: Any, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "output" / "checkpoint-6").mkdir(parents=True)
    given = asked if asked is True else str(tmp_path / asked)
    assert huggingface.resume_from(settings, given) is None
    assert "the training starts from step 0" in capsys.readouterr().err
    assert huggingface.resume_from(settings, "/models/pretrained") == "/models/pretrained"
    assert huggingface.resume_from(replace(settings, resume_from=tmp_path), given) == str(tmp_path)


@pytest.mark.parametrize("asked", ["", None, False])
def test_a_trainer_given_an_empty_checkpoint_begins_at_step_0(asked: Any, settings: Settings) -> None:
    assert huggingface.resume_from(settings, asked) is None
    assert huggingface.resume_from(replace(settings, checkpoint_path=None), asked) is None


class Twice:
    """Runs of ``accelerate_twice.py`` below a directory, and the losses of each."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory, self._monkeypatch = directory, monkeypatch
        self.saves = directory / "saves"

    def train(
        self, attempt: int, variables: dict[str, str], **own: str
    ) -> tuple[small_trainings.Outcome, dict[int, float]]:
        """Run it once; ``variables`` are MemTune's, ``own`` the program's."""
        directory = self._directory / f"attempt-{attempt}"
        directory.mkdir()
        variables = {
            "INTEGRATION": "accelerate",
            "CHECKPOINT_PATH": str(self.saves),
            "ATTEMPT": str(attempt),
            **variables,
        }
        with self._monkeypatch.context() as set_for_this:
            for name, value in {"SAVES_IN": str(self.saves), **own}.items():
                set_for_this.setenv(name, value)
            outcome = small_trainings.run(TWICE, "fp32-ddp-none-mb8x1", directory, 1, **variables)[0]
        losses = re.findall(r"^step (\d+) loss ([\d.]+)", outcome.output, re.MULTILINE)
        return outcome, {int(step): float(loss) for step, loss in losses}

    def resumed(self, name: str, step: int) -> dict[str, str]:
        """Check which checkpoint is the newest, and return the variables of a run that resumes from it."""
        found = newest(self.saves)
        assert found is not None
        samples = 8 * step
        assert (found.directory.parent.name, found.manifest.step, found.manifest.samples) == (name, step, samples)
        return {"RESUME_FROM": str(found.directory), "RESUME_STEP": str(step), "RESUME_SAMPLES": str(samples)}


@pytest.fixture
def twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Twice:
    return Twice(tmp_path, monkeypatch)


@pytest.mark.parametrize("prepares", [{}, {"PREPARES_BOTH": "1"}], ids=["one after the other", "both before"])
def test_only_the_first_of_two_trainings_is_resumed(twice: Twice, prepares: dict[str, str]) -> None:
    failed, before = twice.train(0, {}, FAILS_AT="second-2", **prepares)
    assert failed.exit_code == 1, failed.output
    assert list(before) == [1, 2, 3, 101, 102]
    assert "Accelerator.prepare" in failed.output
    again, after = twice.train(1, twice.resumed("first", 3), **prepares)
    assert again.exit_code == 0, again.output
    # The second training loads what its script has found of it, never the first one's weights.
    assert list(after) == [103, 104, 105]


def test_the_first_training_goes_on_being_saved_where_both_are_prepared_before(twice: Twice) -> None:
    twice.train(0, {}, PREPARES_BOTH="1", FAILS_AT="first-1")
    failed, _ = twice.train(1, twice.resumed("first", 1), PREPARES_BOTH="1", FAILS_AT="second-1")
    assert failed.exit_code == 1, failed.output
    twice.resumed("first", 3)


def test_two_trainings_that_load_the_same_checkpoint_are_refused(twice: Twice) -> None:
    twice.train(0, {}, PREPARES_BOTH="1", FAILS_AT="second-2")
    variables = twice.resumed("first", 3)
    again, losses = twice.train(1, variables, PREPARES_BOTH="1", LOADS=variables["RESUME_FROM"])
    assert (again.report.ending, losses) == (Ending.BAD_INPUT, {}), again.output[-3000:]
    assert "is a checkpoint of its first" in again.report.message


def test_two_trainings_in_turn_are_refused_since_a_save_would_hold_only_one(twice: Twice) -> None:
    outcome, _ = twice.train(0, {}, PREPARES_BOTH="1", IN_TURN="1")
    assert outcome.report.ending is Ending.BAD_INPUT, outcome.output[-3000:]
    assert "two Accelerators of the script train in turn" in outcome.report.message


def test_a_resumed_script_may_load_other_checkpoints_after_training(twice: Twice) -> None:
    twice.train(0, {}, FAILS_AT="first-1")
    again, _ = twice.train(1, twice.resumed("first", 1), LOADS_AT_END="step_2", FAILS_AT="second-1")
    saved, loaded = re.findall(r"norm of step_2: ([\d.]+)", again.output)
    assert loaded == saved


def test_a_later_training_does_not_begin_with_the_first_ones_weights(settings: Settings, tmp_path: Path) -> None:
    load = huggingface.accelerate_load(
        replace(settings, resume_from=tmp_path / "step_3"), lambda _: False, lambda: True
    )
    with pytest.raises(BadInputError, match="is a checkpoint of its first"):
        load(lambda *_: None, None, str(tmp_path / "step_3"))
    assert load(lambda _, asked: asked, None, "its-own") == "its-own"
