"""transformers' Trainer, killed during a save, resumes from the previous checkpoint with a smaller micro-batch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import small_trainings

from memtune.plans.plan import Plan
from memtune.plans.resume import Format
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.checkpoints import newest, resolve
from memtune_runner.rank.settings import Settings

SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "trainer_saves.py"
LARGE, SMALL = "fp32-ddp-none-mb4x2-foreach", "fp32-ddp-full-mb2x4"


def train(plan: str, directory: Path, store: Path, **variables: str) -> str:
    """Return the script's output, whatever became of it."""
    directory.mkdir()
    variables = {"INTEGRATION": "hf-trainer", "CHECKPOINT_PATH": str(store), **variables}
    try:
        return small_trainings.run(SCRIPT, plan, directory, world=1, **variables)[0].output
    except AssertionError as error:  # a killed worker leaves no report
        return str(error)


def told(output: str) -> dict[int, tuple[int, float, float]]:
    """Return for each step the total steps, the loss and the learning rate."""
    found = re.findall(r"^step (\d+) of (\d+) loss ([\d.]+) lr ([\d.e-]+)", output, re.MULTILINE)
    return {int(step): (int(steps), float(loss), float(rate)) for step, steps, loss, rate in found}


def test_a_kill_during_a_save_costs_only_the_steps_since_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.setenv("SAVES_IN", str(tmp_path / "elsewhere"))
    undisturbed = train(LARGE, tmp_path / "undisturbed", tmp_path / "elsewhere")
    whole = told(undisturbed)
    assert sorted(whole) == list(range(1, 11)), undisturbed

    monkeypatch.setenv("SAVES_IN", str(store))
    monkeypatch.setenv("KILLED_AT", "6")
    train(LARGE, tmp_path / "killed", store, ATTEMPT="0")
    monkeypatch.delenv("KILLED_AT")
    found = newest(store)
    assert found is not None
    assert (found.directory.name, found.manifest.format, found.manifest.samples) == (
        "checkpoint-4",
        Format.HF_TRAINER,
        32,
    )
    assert (store / "checkpoint-6").exists(), "the save that was killed had begun"

    resumed = resolve(_settings(store))
    assert resumed is not None
    again = train(
        SMALL,
        tmp_path / "again",
        store,
        ATTEMPT="1",
        RESUME_FROM=str(resumed.directory),
        RESUME_SAMPLES=str(resumed.samples),
    )
    assert sorted(told(again)) == list(range(5, 11)), again
    for step, values in told(again).items():
        assert values == pytest.approx(whole[step], rel=1e-4), f"step {step}"
    assert "fused True" in again, "what was saved must not take the plan's kernel away"
    assert [path.name for path in store.glob("checkpoint-*")] == ["checkpoint-10"], "the script's limit is kept"


def test_a_script_that_saves_only_the_model_is_resumed_with_its_optimizer_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    for name, value in (("SAVES_IN", str(store)), ("KEPT", "9"), ("ONLY_MODEL", "1")):
        monkeypatch.setenv(name, value)
    first = train(LARGE, tmp_path / "whole", store, ATTEMPT="0")
    whole = told(first)
    assert first.count("memtune: save_only_model is taken for False") == 1
    resumed = {"ATTEMPT": "1", "RESUME_FROM": str(store / "checkpoint-4"), "RESUME_SAMPLES": "32"}
    again = told(train(LARGE, tmp_path / "again", store, **resumed))
    assert again == {step: pytest.approx(values, rel=1e-4) for step, values in whole.items() if step > 4}


@pytest.mark.parametrize(
    ("own_loss", "warned"),
    [("mean", 0), ("summed", 1), ("divided", 0), ("told", 0), ("of-model", 0), ("of-model-inherited", 0)],
)
def test_a_loss_of_the_scripts_own_weighs_the_same_in_smaller_micro_batches(
    own_loss: str, warned: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAVES_IN", str(tmp_path / "saves"))
    monkeypatch.setenv("OWN_LOSS", own_loss)
    whole = train("fp32-ddp-none-mb8x1", tmp_path / "whole", tmp_path / "saves")
    parts = train("fp32-ddp-none-mb2x4", tmp_path / "parts", tmp_path / "saves")
    assert told(parts) == {step: pytest.approx(values, rel=1e-4) for step, values in told(whole).items()}
    averaged = "memtune: the loss of Summed.compute_loss is averaged over the 4 micro-batches of a step"
    assert (whole.count("compute_loss is averaged"), parts.count(averaged)) == (0, warned), parts


def _settings(store: Path) -> Settings:
    return Settings(
        plan=Plan.parse(SMALL),
        kind=RunKind.TRAIN,
        integration="hf-trainer",
        global_batch=8,
        sequence_length=32,
        attempt=1,
        device=Device.VIRTUAL,
        gpu_memory_bytes=1 << 30,
        checkpoint_path=store,
    )
