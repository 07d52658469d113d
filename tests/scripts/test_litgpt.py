"""`litgpt finetune_full`: a command that takes the plan's numbers as its arguments."""

from __future__ import annotations

from pathlib import Path

from script_material import Material
from script_runs import CHECKPOINTS, LENGTH, PROGRAMS, job, python, run


def test_litgpt_is_given_the_plan_by_its_arguments(material: Material, tmp_path: Path) -> None:
    model = tmp_path / "model"
    python(PROGRAMS / "make_litgpt.py", material.llama, model)
    settings = {
        "--data": "JSON",
        "--data.json_path": material.instructions,
        "--data.val_split_fraction": 0.25,
        "--train.global_batch_size": "$(MEMTUNE_GLOBAL_BATCH)",
        "--train.micro_batch_size": "$(MEMTUNE_MICRO_BATCH)",
        "--train.epochs": 2,
        "--train.max_seq_length": LENGTH,
        "--train.lr_warmup_steps": 1,
        "--precision": "bf16-mixed",
        "--devices": 1,
        "--out_dir": f"{CHECKPOINTS}/out",
    }
    words = [str(word) for option in settings.items() for word in option]
    command = ["litgpt", "finetune_full", str(model), *words]
    ended = run(job(command, "bf16-ddp-none-mb4x2-sdpa", "env"), tmp_path)
    ended.check_applied()
    assert ended.samples == 72, "two epochs of the 36 that are not kept for validation"
