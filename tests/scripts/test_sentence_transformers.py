"""Sentence embeddings by the Trainer of sentence-transformers, which is transformers' with collators of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from script_models_and_data import HF_CONFIG, Material, save_bert, save_language_bert, save_llama
from script_runs import CHECKPOINTS, PROGRAMS, Ended, job, losses_below, python, run, shrinking

# Of eight samples, what its layers pass on needs segments of 20 MiB.
WIDE = {**HF_CONFIG, "intermediate_size": 1280}


def embeddings(material: Material, directory: Path, plan: str, **spec: Any) -> Ended:
    model = save_llama(directory / "model", WIDE)
    command = ["python", str(PROGRAMS / "sentence_pairs.py"), str(model), str(material.alike), f"{CHECKPOINTS}/run"]
    return run(job(command, plan, model={"hfConfig": WIDE}, **spec), directory)


@pytest.fixture(scope="module")
def undisturbed(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return embeddings(material, tmp_path_factory.mktemp("undisturbed"), "bf16-ddp-none-mb4x2-sdpa")


def test_sentence_embeddings_are_trained_as_planned(undisturbed: Ended) -> None:
    undisturbed.check_applied()
    assert undisturbed.samples == undisturbed.reports[-1].checkpoint_samples == 96, "two epochs of 48"
    assert undisturbed.reports[-1].warnings == ""


def test_sentence_embeddings_recover_in_training_with_the_same_losses(
    material: Material, undisturbed: Ended, tmp_path: Path
) -> None:
    shrunk = shrinking("128Mi", 3, "67%")
    ended = embeddings(material, tmp_path, "bf16-ddp-none-mb8x1-sdpa", resources=shrunk)
    ended.check_recovered(undisturbed.losses, resumed=16, samples=96)


def test_sentence_embeddings_recover_from_an_evaluation_that_is_too_large(material: Material, tmp_path: Path) -> None:
    ended = embeddings(material, tmp_path, "bf16-ddp-none-mb1x8-sdpa", resources=shrinking("64Mi", 3, "72%"))
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["outOfMemory"]) == ("device-oom", "evaluation")
    assert (last["verdict"], last["plan"], last["rung"]) == ("succeeded", first["plan"], "evaluation-batch")
    assert last["resumedSamples"] == 48
    ended.check_applied()
    assert ended.samples == 96


def test_a_reranker_that_ddp_would_refuse_has_the_losses_that_it_has_without_memtune(
    material: Material, tmp_path: Path
) -> None:
    # Its loss uses a weight outside of the model's forward.
    model = save_bert(tmp_path / "model", material.llama, 1280)
    python(PROGRAMS / "cross_encoder.py", model, material.alike, tmp_path / "alone")
    command = ["python", str(PROGRAMS / "cross_encoder.py"), str(model), str(material.alike), f"{CHECKPOINTS}/run"]
    shrunk = shrinking("128Mi", 3, "67%")
    ended = run(job(command, "fp32-ddp-none-mb8x1-sdpa", model={"hfConfig": WIDE}, resources=shrunk), tmp_path)
    ended.check_recovered(losses_below(tmp_path / "alone"), resumed=16, samples=96)


def test_a_loss_that_compares_the_rows_of_a_batch_is_reported(material: Material, tmp_path: Path) -> None:
    model = save_language_bert(tmp_path / "model", material.llama)
    command = ["python", str(PROGRAMS / "sparse_encoder.py"), str(model), str(material.alike), f"{CHECKPOINTS}/run"]
    ended = run(job(command, "bf16-ddp-none-mb4x2-sdpa"), tmp_path)
    ended.check_applied()
    assert ended.samples == 96, "two epochs of 48"
    assert "SparseMultipleNegativesRankingLoss compares the rows of a batch" in ended.status["message"]
    assert "set tuning.space.microBatch [8]" in ended.status["message"]
