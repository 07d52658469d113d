"""Whole programs with Lightning: one under its Trainer with all that belongs to it, and one of Fabric."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import CHECKPOINTS, PROGRAMS, Ended, job, run, shrinking

MODEL = {"architecture": {"hiddenSize": 32, "layers": 2, "heads": 2, "ffnSize": 1280, "vocabSize": 16}}
# Of eight samples, what the layers are wide is the only tensor that needs a segment of 20 MiB.
PLAN = "bf16-ddp-none-mb8x1-sdpa"


def digits(*more: str) -> list[str]:
    return ["python", str(PROGRAMS / "digits_lightning.py"), "--output", f"{CHECKPOINTS}/run", *more]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run(job(digits(), PLAN, "lightning", model=MODEL), tmp_path_factory.mktemp("undisturbed"), anew=True)


def test_a_trainer_trains_as_planned(undisturbed: Ended) -> None:
    undisturbed.check_applied()
    assert undisturbed.samples == undisturbed.reports[-1].checkpoint_samples == 144, "three epochs of 48"
    assert "trained 18 steps" in undisturbed.printed
    assert sorted(undisturbed.losses) == [6, 12, 18]


def test_a_trainer_recovers_in_training_with_the_same_losses(undisturbed: Ended, tmp_path: Path) -> None:
    command = digits("--evaluation-batch-size", "4")
    body = job(command, PLAN, "lightning", model=MODEL, resources=shrinking("64Mi", 9, "65%"))
    ended = run(body, tmp_path)
    assert ended.status["attempts"][0]["phase"] == "forward"
    # It resumes in the midst of the second epoch.
    ended.check_recovered(undisturbed.losses, resumed=64, samples=144)


def test_a_trainer_recovers_from_an_evaluation_that_is_too_large(tmp_path: Path) -> None:
    body = job(digits(), "bf16-ddp-none-mb4x2-sdpa", "lightning", model=MODEL, resources=shrinking("64Mi", 9, "70%"))
    ended = run(body, tmp_path)
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["outOfMemory"]) == ("device-oom", "evaluation")
    assert (last["verdict"], last["plan"], last["rung"]) == ("succeeded", first["plan"], "evaluation-batch")
    ended.check_applied()
    assert ended.samples == 144


def test_a_save_that_fits_no_plan_is_reported(tmp_path: Path) -> None:
    # The copies in a checkpoint take 12 MiB, which training does not.
    known = ("--known", str(12 * 1024 * 1024 // (32 * 4)), "--evaluation-batch-size", "4")
    plan = "bf16-ddp-none-mb2x4-sdpa"
    body = job(digits(*known), plan, "lightning", model=MODEL, resources=shrinking("64Mi", 3, "60%"))
    ended = run(body, tmp_path, succeeds=False)
    assert ended.status["attempts"][-1]["outOfMemory"] == "saving"
    assert "ran out of GPU memory during a save" in ended.said
    assert "no smaller plan that the job allows would fit" in ended.status["message"]


def test_fabric_recovers_in_training_with_the_same_losses(tmp_path: Path) -> None:
    whole, shrunk = (run(fabric_job(resources), tmp_path / str(place)) for place, resources in enumerate(RESOURCES))
    whole.check_applied()
    assert whole.samples == 96, "two epochs of 48"
    shrunk.check_recovered(whole.losses, resumed=64, samples=96)


RESOURCES = ({"gpusPerNode": 1, "gpuMemory": "64Mi", "device": "virtual"}, shrinking("64Mi", 8, "65%"))


def fabric_job(resources: dict[str, object]) -> dict[str, object]:
    resumed = ["--resume", "$(MEMTUNE_RESUME_FROM)", "--samples-done", "$(MEMTUNE_RESUME_SAMPLES)"]
    command = ["python", str(PROGRAMS / "digits_fabric.py"), "--output", f"{CHECKPOINTS}/run"]
    command += ["--accumulate", "$(MEMTUNE_ACCUMULATION)", *resumed]
    return job(command, PLAN, "lightning", model=MODEL, resources=resources)


def test_a_mistake_in_the_arguments_is_reported(tmp_path: Path) -> None:
    ended = run(job(digits("--evaluate-batch", "4"), PLAN, "lightning", model=MODEL), tmp_path, succeeds=False)
    assert ended.status["attempts"][-1]["verdict"] == "user-error"
    assert "--evaluate-batch" in ended.status["message"]
