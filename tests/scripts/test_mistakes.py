"""A wrong argument of each program that has no test of its own for it: the run ends at once, in the program's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_models_and_data import Material
from script_runs import CHECKPOINTS, PROGRAMS, job, run

TRL = ["--model_name_or_path", "{model}", "--dataset_name", "{data}", "--output_dir", CHECKPOINTS]
SAVES = ["--output", CHECKPOINTS]
OWN = "accelerate.test_utils.scripts.external_deps.test_performance"
DEEPSPEED = ["--deepspeed", "--deepspeed_config", "$(MEMTUNE_DEEPSPEED_CONFIG)"]


@pytest.mark.parametrize(
    ("integration", "command", "mistake"),
    [
        ("hf-trainer", ["trl", "dpo", *TRL, "--learn_rate", "0.1"], "--learn_rate"),
        ("hf-trainer", ["trl", "reward", *TRL, "--centre_rewards", "0.1"], "--centre_rewards"),
        ("hf-trainer", ["python", "metrics_trainer.py", "{model}", "{nothing}", CHECKPOINTS], "{nothing}"),
        ("hf-trainer", ["python", "sentence_pairs.py", "{model}", "{nothing}", CHECKPOINTS], "{nothing}"),
        ("hf-trainer", ["python", "cross_encoder.py", "{nothing}", "{data}", CHECKPOINTS], "{nothing}"),
        ("accelerate", ["accelerate", "launch", "-m", OWN, "--epochs", "2"], "--epochs"),
        ("lightning", ["python", "digits_fabric.py", *SAVES, "--accumulation", "2"], "--accumulation"),
        ("env", ["deepspeed", "images_deepspeed.py", *SAVES, *DEEPSPEED, "--num-epochs", "2"], "--num-epochs"),
        ("env", ["python", "images_timm.py", *SAVES, "--num-epochs", "2"], "--num-epochs"),
    ],
    ids=lambda value: " ".join(value[1:2]) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_arguments_is_reported(
    integration: str, command: list[str], mistake: str, material: Material, tmp_path: Path
) -> None:
    named = {"{model}": str(material.llama), "{data}": str(material.pairs), "{nothing}": str(tmp_path / "nothing")}
    words = [str(PROGRAMS / word) if word.endswith(".py") else named.get(word, word) for word in command]
    ended = run(job(words, "bf16-ddp-none-mb8x1-sdpa", integration), tmp_path, succeeds=False)
    assert ended.status["attempts"][-1]["verdict"] == "user-error"
    assert (ended.reports[-1].exit_code in (1, 2), ended.reports[-1].steps) == (True, 0)
    assert named.get(mistake, mistake) in ended.status["message"]
    is_retried = mistake == "{nothing}"  # it may be there the next time
    assert len(ended.status["attempts"]) == 1 + is_retried
