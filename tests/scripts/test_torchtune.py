"""`tune run`: torchtune's launcher and one of its recipes, which take the plan's numbers as settings."""

from __future__ import annotations

from pathlib import Path

from script_material import Material
from script_runs import CHECKPOINTS, PROGRAMS, TORCHTUNE, job, python, run


def test_a_recipe_is_given_the_plan_by_its_settings(material: Material, tmp_path: Path) -> None:
    python(PROGRAMS / "make_tokenizer.py", material.texts / "train.jsonl", tmp_path / "tokens", packages=TORCHTUNE)
    settings = {
        "base": material.llama,
        "tokens": tmp_path / "tokens",
        "data": material.texts / "train.jsonl",
        "output_dir": f"{CHECKPOINTS}/out",
        "batch_size": "$(MEMTUNE_MICRO_BATCH)",
        "gradient_accumulation_steps": "$(MEMTUNE_ACCUMULATION)",
    }
    recipe = ["full_finetune_single_device", "--config", str(PROGRAMS / "torchtune.yaml")]
    command = ["tune", "run", *recipe, *(f"{name}={value}" for name, value in settings.items())]
    ended = run(job(command, "fp32-ddp-none-mb4x2-sdpa", "env"), tmp_path, packages=TORCHTUNE)
    ended.check_applied()
    assert ended.samples == 96, "two epochs of 48"
