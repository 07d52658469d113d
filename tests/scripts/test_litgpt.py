"""`litgpt finetune_full`: a command that takes the plan's numbers as its arguments, and whose loop is Fabric's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from script_models_and_data import HF_CONFIG, Material
from script_runs import CHECKPOINTS, LENGTH, PROGRAMS, Ended, job, python, run, shrinking

PLAN = "bf16-ddp-none-mb8x1-sdpa"
# Of eight samples, what its layers pass on needs segments of 20 MiB.
WIDTH = 1280


@pytest.fixture(scope="module")
def model(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("litgpt") / "model"
    python(PROGRAMS / "make_litgpt.py", material.llama, directory, WIDTH)
    return directory


def finetune(
    model: Path, material: Material, directory: Path, integration: str, *more: str, succeeds: bool = True, **spec: Any
) -> Ended:
    settings = {
        "--data": "JSON",
        "--data.json_path": material.instructions,
        "--data.val_split_fraction": 0.34,
        "--data.num_workers": 1,  # of four, each epoch and validation would start new ones
        "--train.global_batch_size": "$(MEMTUNE_GLOBAL_BATCH)",
        "--train.micro_batch_size": "$(MEMTUNE_MICRO_BATCH)",
        "--train.epochs": 3,
        "--train.max_seq_length": LENGTH,
        "--train.lr_warmup_steps": 1,
        "--train.save_interval": 2,
        "--eval.interval": 3,
        "--precision": "bf16-mixed",
        "--devices": 1,
        "--out_dir": f"{CHECKPOINTS}/out",
    }
    words = (str(word) for setting in settings.items() for word in setting)
    command = ["litgpt", "finetune_full", str(model), *words, *more]
    described = {"hfConfig": {**HF_CONFIG, "intermediate_size": WIDTH}}
    return run(job(command, PLAN, integration, model=described, **spec), directory, succeeds)


@pytest.fixture(scope="module")
def undisturbed(model: Path, material: Material, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return finetune(model, material, tmp_path_factory.mktemp("undisturbed"), "env")


def test_litgpt_is_given_the_plan_by_its_arguments(undisturbed: Ended) -> None:
    # After its first validation, LitGPT trains in evaluation mode.
    undisturbed.check_applied()
    assert undisturbed.samples == undisturbed.reports[-1].trained_samples == 96, "three epochs of the 32 not validated"


def test_litgpt_recovers_in_training_with_the_same_losses(
    model: Path, material: Material, undisturbed: Ended, tmp_path: Path
) -> None:
    shrunk = shrinking("64Mi", 5, "65%")
    ended = finetune(model, material, tmp_path, "lightning", "--resume", "auto", resources=shrunk)
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["phase"], first["evaluationBatch"]) == ("device-oom", "forward", 0)
    assert (last["verdict"], last["rung"], last["resumedSamples"]) == ("succeeded", "micro-batch", 32)
    ended.check_applied()
    assert ended.samples == 96
    assert ended.losses == pytest.approx(undisturbed.losses, rel=5e-3)


def test_a_mistake_in_the_arguments_is_reported(model: Path, material: Material, tmp_path: Path) -> None:
    ended = finetune(model, material, tmp_path, "lightning", "--train.micro_batches", "4", succeeds=False)
    assert ended.status["attempts"][-1]["verdict"] == "user-error"
    assert "train.micro_batches" in ended.status["message"]
