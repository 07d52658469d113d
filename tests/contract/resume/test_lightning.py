"""Lightning's Trainer resumes within an epoch under another plan, with the same data and the same loss."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import small_trainings
from resumed_training import PROGRAMS, Whole

from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Way
from memtune.wire.report import Device, Ending
from memtune.wire.run import RunKind
from memtune_runner.checkpoints import newest, resolve
from memtune_runner.rank.settings import Settings

SCRIPT = PROGRAMS / "lightning_saves.py"
LARGE, SMALL = "fp32-ddp-none-mb4x2", "fp32-ddp-full-mb2x4"


@pytest.fixture(autouse=True)
def _launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launched")


def told(output: str) -> dict[int, tuple[int, float, float]]:
    """Return for each step the total steps, the loss and the learning rate."""
    found = re.findall(r"^step (\d+) of (\d+) loss ([\d.]+) lr ([\d.e-]+)", output, re.MULTILINE)
    return {int(step): (int(steps), float(loss), float(rate)) for step, steps, loss, rate in found}


def test_an_out_of_memory_costs_only_the_steps_since_the_last_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(name: str, plan: str, **variables: str) -> small_trainings.Outcome:
        (tmp_path / name).mkdir()
        monkeypatch.setenv("SAVES_IN", str(tmp_path / name / "own"))
        return small_trainings.run(SCRIPT, plan, tmp_path / name, 1, INTEGRATION="lightning", **variables)[0]

    undisturbed = train("undisturbed", LARGE)
    whole = told(undisturbed.output)
    assert sorted(whole) == list(range(1, 11)), undisturbed.output

    store = tmp_path / "store"
    monkeypatch.setenv("HEAVY_FROM", "5")  # too much for four rows in 1 GiB, but not for two
    failed = train("failed", LARGE, CHECKPOINT_PATH=str(store), ATTEMPT="0")
    assert failed.report.ending is Ending.DEVICE_OOM, failed.output
    found = newest(store)
    assert found is not None
    assert (found.manifest.format, found.manifest.samples) == (Format.LIGHTNING, 32)

    resumed = resolve(_settings(store))
    assert resumed is not None
    again = train(
        "again",
        SMALL,
        CHECKPOINT_PATH=str(store),
        ATTEMPT="1",
        RESUME_FROM=str(resumed.directory),
        RESUME_SAMPLES=str(resumed.samples),
    )
    assert sorted(told(again.output)) == list(range(5, 11)), again.output
    for step, values in told(again.output).items():
        assert values == pytest.approx(whole[step], rel=1e-4), f"step {step}"
    assert again.report.checkpoint_samples == 80


@pytest.mark.parametrize(
    ("saved", "saved_world", "wanted", "wanted_world", "way"),
    [
        ("fp32-ddp-none-mb2x2", 2, "fp32-ddp-full-mb4x2", 1, Way.DIRECT),
        ("fp32-fsdp-none-mb4x2", 1, "fp32-fsdpsgo-full-mb2x2", 2, Way.DIRECT),
        ("fp32-z2-none-mb4x2-bk1m", 1, "fp32-z2-full-mb2x4-bk1m", 1, Way.DIRECT),
        ("fp32-z2-none-mb4x2-bk1m", 1, "fp32-z3-none-mb4x2-bk1m", 1, Way.CONVERT),
    ],
)
def test_a_relaunch_continues_with_the_same_loss(
    saved: str, saved_world: int, wanted: str, wanted_world: int, way: Way, tmp_path: Path
) -> None:
    whole = Whole("lightning", saved, saved_world, tmp_path / "whole")
    whole.goes_on(wanted, wanted_world, way, tmp_path / "store")


def test_a_loop_with_fabric_goes_on(tmp_path: Path) -> None:
    def train(name: str, plan: str, **variables: str) -> dict[str, str]:
        (tmp_path / name).mkdir()
        store = str(tmp_path / name / "store")
        variables = {"INTEGRATION": "lightning", "CHECKPOINT_PATH": store, **variables}
        outcome = small_trainings.run(
            small_trainings.SCRIPTS / "lightning_fabric.py", plan, tmp_path / name, 1, **variables
        )[0]
        assert outcome.exit_code == 0, outcome.output
        return dict(re.findall(r"^step (\d+) loss ([\d.]+)", outcome.output, re.MULTILINE))

    # An epoch of 64 rows ends with a step of 4, so that samples do not tell in steps of 6 where it goes on.
    whole = train("whole", "fp32-ddp-none-mb3x2", ATTEMPT="0")
    assert list(whole) == [str(step) for step in range(1, 23)]
    saved = tmp_path / "whole" / "store" / "memtune-step-00000021-attempt-0"
    resuming = {"RESUME_FROM": str(saved), "RESUME_STEP": "21", "RESUME_SAMPLES": "124", "ATTEMPT": "1"}
    again = train("again", "fp32-ddp-full-mb3x2", **resuming)
    assert again.keys() == {"22"}
    assert float(again["22"]) == pytest.approx(float(whole["22"]), rel=1e-4)


def _settings(store: Path) -> Settings:
    return Settings(
        plan=Plan.parse(SMALL),
        kind=RunKind.TRAIN,
        integration="lightning",
        global_batch=8,
        sequence_length=32,
        attempt=1,
        device=Device.VIRTUAL,
        gpu_memory_bytes=1 << 30,
        checkpoint_path=store,
    )
