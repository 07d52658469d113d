"""TRL's own scripts, as `trl` starts them: fine-tuning, preferences with adapters of PEFT, a reward model."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_material import HF_CONFIG, Material
from script_runs import CHECKPOINTS, LENGTH, Ended, job, run, shrinking

OUTPUT = ["--output_dir", f"{CHECKPOINTS}/run", "--report_to", "none", "--logging_steps", "1"]
PLAN = "bf16-ddp-none-mb8x1-sdpa"
ROWS = 48


def trl(script: str, material: Material, data: Path, *more: str) -> list[str]:
    length = ["--model_name_or_path", str(material.llama), "--dataset_name", str(data), "--max_length", str(LENGTH)]
    return ["trl", script, *length, *OUTPUT, *more]


@pytest.fixture(scope="module")
def undisturbed(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    command = trl("sft", material, material.texts, "--num_train_epochs", "2")
    return run(job(command, PLAN), tmp_path_factory.mktemp("undisturbed"))


def test_sft_is_trained_as_planned(undisturbed: Ended) -> None:
    undisturbed.check_applied()
    assert undisturbed.samples == 2 * ROWS


def test_sft_recovers_in_training_with_the_same_losses(material: Material, undisturbed: Ended, tmp_path: Path) -> None:
    command = trl("sft", material, material.texts, "--num_train_epochs", "2", "--save_steps", "2")
    ended = run(job(command, PLAN, resources=shrinking("64Mi", 5, "45%")), tmp_path)
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["outOfMemory"], last["verdict"]) == ("device-oom", "activation", "succeeded")
    assert last["resumedSamples"] == 32
    ended.check_applied()
    assert ended.samples == 2 * ROWS
    assert ended.losses == pytest.approx(undisturbed.losses, rel=5e-3)


def test_sft_recovers_from_an_evaluation_that_is_too_large(material: Material, tmp_path: Path) -> None:
    evaluates = ("--eval_strategy", "steps", "--eval_steps", "2", "--per_device_eval_batch_size", "16")
    command = trl("sft", material, material.texts, *evaluates, "--save_steps", "1", "--num_train_epochs", "1")
    ended = run(job(command, "bf16-ddp-none-mb2x4-sdpa", resources=shrinking("128Mi", 3, "75%")), tmp_path)
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["outOfMemory"]) == ("device-oom", "evaluation")
    assert "ran out of GPU memory during an evaluation in batches of 16" in ended.said
    assert (last["verdict"], last["plan"], last["rung"]) == ("succeeded", first["plan"], "evaluation-batch")
    assert last["resumedSamples"] > 0
    ended.check_applied()
    assert ended.samples == ROWS


@pytest.mark.parametrize(("script", "task"), [("dpo", "CAUSAL_LM"), ("reward", "SEQ_CLS")])
def test_adapters_learn_preferences_as_planned(script: str, task: str, material: Material, tmp_path: Path) -> None:
    adapters = ("--use_peft", "--lora_task_type", task, "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj")
    model = {"hfConfig": HF_CONFIG, "peft": {"rank": 4, "targets": ["q_proj", "v_proj"]}}
    command = trl(script, material, material.pairs, *adapters, "--save_steps", "3", "--num_train_epochs", "1")
    ended = run(job(command, PLAN, model=model), tmp_path)
    ended.check_applied()
    assert ended.samples == ended.reports[-1].checkpoint_samples == ROWS


def test_a_mistake_in_the_arguments_is_told(material: Material, tmp_path: Path) -> None:
    command = trl("sft", material, tmp_path / "nothing")
    ended = run(job(command, PLAN), tmp_path, succeeds=False)
    assert ended.status["attempts"][-1]["verdict"] == "user-error"
    assert "nothing" in ended.status["message"]
