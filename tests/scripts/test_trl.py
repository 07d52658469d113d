"""TRL's own scripts, as `trl` starts them: fine-tuning, preferences with adapters of PEFT, a reward model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from script_models_and_data import HF_CONFIG, WIDE_CONFIG, Material, save_llama, save_rows, sentence
from script_runs import CHECKPOINTS, LENGTH, Ended, job, run, shrinking

OUTPUT = ["--output_dir", f"{CHECKPOINTS}/run", "--report_to", "none", "--logging_steps", "1"]
PLAN = "bf16-ddp-none-mb8x1-sdpa"
ROWS = 48
ADAPTED = {"hfConfig": WIDE_CONFIG, "peft": {"rank": 4, "targets": ["q_proj", "v_proj"]}}


def trl(script: str, model: Path, data: Path, *more: str, length: int = LENGTH) -> list[str]:
    places = ["--model_name_or_path", str(model), "--dataset_name", str(data), "--max_length", str(length)]
    return ["trl", script, *places, *OUTPUT, *more]


def preferences(script: str, task: str, material: Material, *more: str) -> list[str]:
    adapters = ("--use_peft", "--lora_task_type", task, "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj")
    return trl(script, material.wide, material.pairs, *adapters, *more)


@pytest.fixture(scope="module")
def undisturbed(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    command = trl("sft", material.llama, material.texts, "--num_train_epochs", "2")
    return run(job(command, PLAN), tmp_path_factory.mktemp("undisturbed"), anew=True)


def test_sft_is_trained_as_planned(undisturbed: Ended) -> None:
    undisturbed.check_applied()
    assert undisturbed.samples == 2 * ROWS


def test_sft_recovers_in_training_with_the_same_losses(material: Material, undisturbed: Ended, tmp_path: Path) -> None:
    command = trl("sft", material.llama, material.texts, "--num_train_epochs", "2", "--save_steps", "2")
    ended = run(job(command, PLAN, resources=shrinking("64Mi", 5, "45%")), tmp_path)
    assert ended.status["attempts"][0]["outOfMemory"] == "activation"
    ended.check_recovered(undisturbed.losses, resumed=32, samples=2 * ROWS)


def test_sft_recovers_from_an_evaluation_that_is_too_large(material: Material, tmp_path: Path) -> None:
    evaluates = ("--eval_strategy", "steps", "--eval_steps", "2", "--per_device_eval_batch_size", "16")
    command = trl("sft", material.llama, material.texts, *evaluates, "--save_steps", "1", "--num_train_epochs", "1")
    ended = run(job(command, "bf16-ddp-none-mb2x4-sdpa", resources=shrinking("128Mi", 3, "75%")), tmp_path)
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["outOfMemory"]) == ("device-oom", "evaluation")
    assert "ran out of GPU memory during an evaluation in batches of 16" in ended.said
    assert (last["verdict"], last["plan"], last["rung"]) == ("succeeded", first["plan"], "evaluation-batch")
    assert last["resumedSamples"] > 0
    ended.check_applied()
    assert ended.samples == ROWS


def test_sft_recovers_from_a_save_that_gathers_too_much(tmp_path: Path) -> None:
    # The embedding alone is gathered, once for what is saved after the last step: DeepSpeed keeps small weights whole.
    config = {**HF_CONFIG, "hidden_size": 512, "vocab_size": 10368, "num_hidden_layers": 1, "tie_word_embeddings": True}
    rows = save_rows(tmp_path / "texts", "train", ({"text": sentence(row, 60)} for row in range(4)))
    model = save_llama(tmp_path / "model", config)
    command = trl("sft", model, rows, "--max_steps", "2", "--save_steps", "1", length=16)
    ended = run(
        job(
            command,
            "",
            model={"hfConfig": config},
            training={"globalBatchSize": 2, "sequenceLength": 16, "attention": "sdpa"},
            tuning={"mode": "Fixed", "plan": "bf16-z3-none-mb2x1-sdpa-bk5m", "space": {"zeroStages": [3]}},
            resources=shrinking("512Mi", 2, "85%"),
        ),
        tmp_path,
    )
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["phase"], first["outOfMemory"]) == ("device-oom", "save", "saving")
    assert (last["verdict"], last["plan"], last["rung"]) == ("succeeded", first["plan"], "sharded-save")
    assert (last["resumedSamples"], ended.reports[-1].checkpoint_samples) == (2, 4)
    ended.check_applied()


@pytest.mark.parametrize(
    ("script", "task", "shrunk"),
    # DPO has the logits of a policy and of its reference, which a reward model has not.
    [("dpo", "CAUSAL_LM", shrinking("128Mi", 2, "60%")), ("reward", "SEQ_CLS", shrinking("64Mi", 2, "72%"))],
)
def test_adapters_learn_preferences_and_recover_with_the_same_losses(
    script: str, task: str, shrunk: dict[str, Any], material: Material, tmp_path: Path
) -> None:
    # So fast that each step has a loss of its own.
    length = ("--save_steps", "1", "--num_train_epochs", "1", "--learning_rate", "0.003")
    command = preferences(script, task, material, *length)
    whole = run(job(command, PLAN, model=ADAPTED), tmp_path / "whole")
    whole.check_applied()
    assert whole.samples == whole.reports[-1].checkpoint_samples == ROWS
    ended = run(job(command, PLAN, model=ADAPTED, resources=shrunk), tmp_path / "shrunk")
    ended.check_recovered(whole.losses, resumed=16, samples=ROWS, rel=1e-3)


@pytest.mark.parametrize(
    ("script", "task", "shrunk"),
    [("dpo", "CAUSAL_LM", shrinking("128Mi", 3, "60%")), ("reward", "SEQ_CLS", shrinking("64Mi", 3, "72%"))],
)
def test_preferences_recover_from_an_evaluation_that_is_too_large(
    script: str, task: str, shrunk: dict[str, Any], material: Material, tmp_path: Path
) -> None:
    evaluates = ("--eval_strategy", "steps", "--eval_steps", "2", "--per_device_eval_batch_size", "16")
    command = preferences(script, task, material, *evaluates, "--save_steps", "1", "--max_steps", "5")
    ended = run(job(command, "bf16-ddp-none-mb1x8-sdpa", model=ADAPTED, resources=shrunk), tmp_path)
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["outOfMemory"]) == ("device-oom", "evaluation")
    assert (last["verdict"], last["plan"], last["rung"]) == ("succeeded", first["plan"], "evaluation-batch")
    assert last["resumedSamples"] > 0
    ended.check_applied()
    assert ended.samples == 5 * 8


def test_a_mistake_in_the_arguments_is_reported(material: Material, tmp_path: Path) -> None:
    command = trl("sft", material.llama, tmp_path / "nothing")
    ended = run(job(command, PLAN), tmp_path, succeeds=False)
    assert ended.status["attempts"][-1]["verdict"] == "user-error"
    assert "nothing" in ended.status["message"]
