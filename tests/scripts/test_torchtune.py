"""`tune run`: torchtune's launcher and one of its recipes, which take the plan's numbers as settings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from script_models_and_data import WIDE_CONFIG, Material
from script_runs import CHECKPOINTS, PROGRAMS, ROOT, TORCHTUNE, Ended, job, python, run, shrinking


@pytest.fixture(scope="module")
def tokens(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("torchtune") / "tokens"
    python(PROGRAMS / "make_tokenizer.py", material.texts / "train.jsonl", directory, packages=TORCHTUNE)
    return directory


def tune(
    tokens: Path,
    material: Material,
    directory: Path,
    more: dict[str, Any],
    succeeds: bool = True,
    anew: bool = False,
    **spec: Any,
) -> Ended:
    settings = {
        "base": material.wide,
        "tokens": tokens,
        "data": material.texts / "train.jsonl",
        "model.intermediate_dim": WIDE_CONFIG["intermediate_size"],
        "output_dir": f"{CHECKPOINTS}/out",
        "batch_size": "$(MEMTUNE_MICRO_BATCH)",
        "gradient_accumulation_steps": "$(MEMTUNE_ACCUMULATION)",
        **more,
    }
    recipe = ["full_finetune_single_device", "--config", str(PROGRAMS / "torchtune.yaml")]
    command = ["tune", "run", *recipe, *(f"{name}={value}" for name, value in settings.items())]
    body = job(command, "fp32-ddp-none-mb8x1-sdpa", "env", model={"hfConfig": WIDE_CONFIG}, **spec)
    return run(body, directory, succeeds, packages=TORCHTUNE, anew=anew)


@pytest.fixture(scope="module")
def undisturbed(tokens: Path, material: Material, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return tune(tokens, material, tmp_path_factory.mktemp("undisturbed"), {}, anew=True)


def test_a_recipe_is_given_the_plan_by_its_settings(undisturbed: Ended) -> None:
    undisturbed.check_applied()
    assert undisturbed.samples == 96, "two epochs of 48"


def test_a_recipe_with_a_checkpointer_of_ones_own_recovers_in_training_with_the_same_losses(
    tokens: Path, material: Material, undisturbed: Ended, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "examples" / "scripts" / "torchtune_checkpoints.py", tmp_path)
    saves = {
        "checkpointer._component_": "torchtune_checkpoints.Resumable",
        "checkpointer.samples_per_epoch": 48,
        "resume_from_checkpoint": "$(MEMTUNE_RESUME_FROM)",
    }
    ended = tune(tokens, material, tmp_path, saves, resources=shrinking("64Mi", 8, "65%"))
    ended.check_recovered(undisturbed.losses, resumed=48, samples=96, rel=1e-4)


def test_a_mistake_in_the_settings_is_reported(tokens: Path, material: Material, tmp_path: Path) -> None:
    ended = tune(tokens, material, tmp_path, {"optimizer._component_": "torch.optim.Adam_W"}, succeeds=False)
    assert ended.status["attempts"][-1]["verdict"] == "user-error"
    assert "Adam_W" in ended.status["message"]
