"""The model that a script saves at its end is whole, even if the plan shards its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_trainings
from safetensors.torch import load_file

from memtune.wire.report import Ending

SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "saves_model.py"
FSDP = SCRIPT.with_name("fsdp_on_cpu.py")


def run(kind: str, integration: str, directory: Path, world: int = 2) -> list[small_trainings.Outcome]:
    arguments = (kind, str(directory / "saved"))
    return small_trainings.run(SCRIPT, "bf16-z3-none-mb2x1-bk1m", directory, world, arguments, INTEGRATION=integration)


def check(file: Path) -> None:
    weights = load_file(file)
    assert weights["model.embed_tokens.weight"].shape == (4096, 64)
    assert all(each.numel() for each in weights.values())


@pytest.mark.parametrize(
    ("kind", "integration", "world"),
    [
        ("trainer", "hf-trainer", 2),
        ("state", "accelerate", 2),
        ("model", "accelerate", 2),
        ("diffusers", "accelerate", 2),
        ("main", "accelerate", 1),
    ],
)
def test_a_model_saved_under_stage_3_can_be_loaded(kind: str, integration: str, world: int, tmp_path: Path) -> None:
    outcomes = run(kind, integration, tmp_path, world)
    assert [each.report.ending for each in outcomes] == [Ending.SUCCEEDED] * world, outcomes[0].output[-3000:]
    check(tmp_path / "saved" / "model.safetensors")


def test_a_model_saved_under_fsdp_can_be_loaded(tmp_path: Path) -> None:
    arguments, plan = ("model", str(tmp_path / "saved")), "fp32-fsdp-none-mb2x1"
    outcomes = small_trainings.Workers(FSDP).run(SCRIPT, plan, tmp_path, 2, arguments, INTEGRATION="accelerate")
    assert [each.report.ending for each in outcomes] == [Ending.SUCCEEDED] * 2, outcomes[0].output[-3000:]
    check(tmp_path / "saved" / "model.safetensors")


def test_fsdp_gathers_only_the_trained_weights_of_adapters(tmp_path: Path) -> None:
    arguments, plan = ("lora", str(tmp_path / "saved")), "fp32-fsdp-none-mb2x1"
    outcomes = small_trainings.Workers(FSDP).run(SCRIPT, plan, tmp_path, 2, arguments, INTEGRATION="accelerate")
    assert [each.report.ending for each in outcomes] == [Ending.SUCCEEDED] * 2, outcomes[0].output[-3000:]
    assert "gathered ['default']" in outcomes[0].output, "the adapter's name, and no layer of the frozen model"
    weights = load_file(tmp_path / "saved" / "adapter_model.safetensors")
    assert {tuple(each.shape) for each in weights.values()} == {(4, 64), (64, 4)}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("main", "was called on rank 0 only, and rank 1 went on without it: call it on every rank"),
        ("barrier", "was called on rank 0 only, and rank 1 went on without it: call it on every rank"),
        ("part", "LlamaModel.save_pretrained would save empty weights, since plan bf16-z3-none-mb2x1-bk1m shards them"),
    ],
)
def test_a_model_that_would_be_saved_empty_is_refused(kind: str, words: str, tmp_path: Path) -> None:
    outcome = run(kind, "accelerate", tmp_path)[0]
    assert outcome.report.ending is Ending.BAD_INPUT, outcome.output[-3000:]
    assert words in outcome.report.message
