"""Loops with accelerate: the scripts that it is tested with, and one as transformers' examples are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from script_models_and_data import HF_CONFIG, Material, save_llama
from script_runs import CHECKPOINTS, LENGTH, PROGRAMS, Ended, job, run, shrinking

# What the scripts of accelerate train on in a step, whatever they are told.
OWN_BATCH = {"globalBatchSize": 16, "sequenceLength": LENGTH, "attention": "sdpa"}
EPOCHS = ["--num_epochs", "2", "--output_dir", CHECKPOINTS]
PLAN = "bf16-ddp-none-mb8x1-sdpa"
# 24 blocks of 120 tokens. Of eight, the logits in fp32 are the only tensors that need a segment of 20 MiB.
BLOCKS = {"globalBatchSize": 8, "sequenceLength": 120, "attention": "sdpa"}
LIMITED = ("--checkpointing-steps", "2", "--max-train-steps", "11")


def of_accelerate(script: str, weights: Path, material: Material, directory: Path, plan: str, **spec: Any) -> Ended:
    """Run a script of accelerate's where its data set and its metric lie under their names."""
    for each in material.hub.iterdir():
        (directory / each.name).symlink_to(each)
    module = f"accelerate.test_utils.scripts.external_deps.{script}"
    command = ["accelerate", "launch", "-m", module, "--model_name_or_path", str(weights), *EPOCHS]
    return run(job(command, plan, "accelerate", training=OWN_BATCH, **spec), directory)


def causal_lm(material: Material, *more: str) -> list[str]:
    files = ["--train", str(material.texts / "train.jsonl"), "--validation", str(material.texts / "test.jsonl")]
    places = ["--model", str(material.llama), *files, "--output", f"{CHECKPOINTS}/run"]
    return ["accelerate", "launch", str(PROGRAMS / "causal_lm.py"), *places, *more]


@pytest.mark.parametrize(
    ("script", "plan"),
    [("test_performance", "fp32-ddp-none-mb8x2-sdpa"), ("test_checkpointing", "fp32-ddp-none-mb16x1-sdpa")],
)
def test_accelerates_own_scripts_are_trained_as_planned(
    script: str, plan: str, material: Material, tmp_path: Path
) -> None:
    # The first of them checks the learning rate that its own schedule comes to, in fp32.
    ended = of_accelerate(script, material.llama, material, tmp_path, plan)
    ended.check_applied()
    assert ended.samples == 96, "two epochs of 48"


def test_a_script_that_never_saves_recovers_from_an_evaluation_that_is_too_large(
    material: Material, tmp_path: Path
) -> None:
    # Of sixteen rows, what a layer passes on needs a segment of 20 MiB.
    config = {**HF_CONFIG, "intermediate_size": 2560}
    ended = of_accelerate(
        "test_performance",
        save_llama(tmp_path / "model", config),
        material,
        tmp_path,
        "fp32-ddp-none-mb2x8-sdpa",
        model={"hfConfig": config},
        resources=shrinking("64Mi", 1, "55%"),
    )
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["outOfMemory"]) == ("device-oom", "evaluation")
    assert (last["verdict"], last["plan"], last["rung"]) == ("succeeded", first["plan"], "evaluation-batch")
    assert (last["resumedSamples"], ended.reports[-1].applied.evaluation_batch) == (0, 2)
    ended.check_applied()
    assert ended.samples == 96


@pytest.fixture(scope="module")
def undisturbed(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    command = causal_lm(material, *LIMITED)
    body = job(command, PLAN, "accelerate", training=BLOCKS)
    return run(body, tmp_path_factory.mktemp("undisturbed"), anew=True)


def test_a_loop_keeps_its_own_schedule(undisturbed: Ended) -> None:
    undisturbed.check_applied()
    assert "11 optimizer steps in 4 epochs" in undisturbed.printed
    assert (undisturbed.samples, sorted(undisturbed.losses)) == (88, list(range(1, 12)))


def test_a_loop_recovers_in_training_with_the_same_losses(
    material: Material, undisturbed: Ended, tmp_path: Path
) -> None:
    # What is evaluated is small, so that only the training runs out of memory.
    resumed = ["--resume-from-checkpoint", "$(MEMTUNE_RESUME_FROM)", "--per-device-eval-batch-size", "2"]
    command = causal_lm(material, *LIMITED, *resumed)
    ended = run(job(command, PLAN, "accelerate", training=BLOCKS, resources=shrinking("64Mi", 5, "65%")), tmp_path)
    assert ended.status["attempts"][0]["phase"] == "forward"
    ended.check_recovered(undisturbed.losses, resumed=32, samples=88)


def test_a_loop_recovers_from_an_evaluation_that_is_too_large(material: Material, tmp_path: Path) -> None:
    # The script always asks for batches of 16: it is the prepared loader that is given smaller ones.
    words = ("--lora-rank", "4", "--per-device-eval-batch-size", "16")
    command = causal_lm(material, *words, "--resume-from-checkpoint", "$(MEMTUNE_RESUME_FROM)")
    model = {"hfConfig": HF_CONFIG, "peft": {"rank": 4, "targets": ["q_proj", "v_proj"]}}
    body = job(
        command,
        "bf16-ddp-none-mb2x4-sdpa",
        "accelerate",
        training=BLOCKS,
        model=model,
        resources=shrinking("64Mi", 4, "70%"),
    )
    ended = run(body, tmp_path)
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["outOfMemory"]) == ("device-oom", "evaluation")
    assert "ran out of GPU memory during an evaluation in batches of 8" in ended.said
    assert (last["verdict"], last["plan"], last["rung"]) == ("succeeded", first["plan"], "evaluation-batch")
    assert last["resumedSamples"] == 24
    ended.check_applied()
    assert ended.samples == 72, "three epochs of 24"


def test_a_mistake_in_the_arguments_is_reported(material: Material, tmp_path: Path) -> None:
    ended = run(
        job(causal_lm(material, "--max-steps", "11"), PLAN, "accelerate", training=BLOCKS), tmp_path, succeeds=False
    )
    assert ended.status["attempts"][-1]["verdict"] == "user-error"
    assert "--max-steps" in ended.status["message"]
