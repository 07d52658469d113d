"""Sentence embeddings by the Trainer of sentence-transformers, which is transformers' with collators of its own."""

from __future__ import annotations

from pathlib import Path

from script_material import Material
from script_runs import CHECKPOINTS, PROGRAMS, job, run


def test_sentence_embeddings_are_trained_as_planned(material: Material, tmp_path: Path) -> None:
    script = PROGRAMS / "sentence_pairs.py"
    command = ["python", str(script), str(material.llama), str(material.alike), f"{CHECKPOINTS}/run"]
    ended = run(job(command, "bf16-ddp-none-mb4x2-sdpa"), tmp_path)
    ended.check_applied()
    assert ended.samples == ended.reports[-1].checkpoint_samples == 96, "two epochs of 48"
