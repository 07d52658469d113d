"""The built-in trainer: after an out-of-memory it resumes on a smaller plan with the same loss."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_trainings import Outcome, run

from memtune.model.plain import from_facts
from memtune.plans.plan import Plan
from memtune.units import MIB
from memtune.wire.report import Device, Ending
from memtune.wire.run import RunKind
from memtune_runner.checkpoints import NotResumableError, newest, resolve
from memtune_runner.rank.settings import Settings
from memtune_runner.trainer import Trainer

SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "trainer_script.py"
FACTS = {"hiddenSize": 64, "layers": 3, "heads": 4, "kvHeads": 2, "ffnSize": 2048, "vocabSize": 256}
ARCHITECTURE = json.dumps(asdict(from_facts(FACTS)))
LARGE, SMALL = "fp32-ddp-none-mb8x1", "fp32-ddp-full-mb2x4"
# Between the plans' reservations of 62 and 44 MiB. Smaller tensors would leave no whole segment to take away.
BUDGET_BYTES = 50 * MIB


def train(plan: str, directory: Path, world: int = 1, **variables: str) -> Outcome:
    """Run rank 0 to its end."""
    directory.mkdir()
    variables = {"ARCHITECTURE": ARCHITECTURE, "INTEGRATION": "env", **variables}
    return run(SCRIPT, plan, directory, world, **variables)[0]


def losses(outcome: Outcome) -> dict[int, float]:
    found = re.findall(r"^step (\d+) loss ([\d.]+)", outcome.output, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of an uninterrupted run."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TRAINER_ARGUMENTS", "--steps 6 --evaluate-every 3")
        undisturbed = train(LARGE, tmp_path_factory.mktemp("undisturbed") / "run")
    assert undisturbed.exit_code == 0, undisturbed.output
    assert sorted(losses(undisturbed)) == [1, 2, 3, 4, 5, 6]
    return losses(undisturbed)


def test_a_plan_that_is_too_large_is_followed_by_one_that_resumes_with_the_same_loss(
    whole: dict[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINER_ARGUMENTS", "--steps 6 --save-every 2")
    store = tmp_path / "store"

    failed = train(LARGE, tmp_path / "failed", CHECKPOINT_PATH=str(store), ATTEMPT="0", SHRINK=f"3:{BUDGET_BYTES}")
    assert (failed.report.ending, failed.report.exit_code) == (Ending.DEVICE_OOM, 85), failed.output
    assert failed.report.phase is not None
    assert failed.report.largest
    assert (failed.report.checkpoint_samples, failed.report.checkpoint_format) == (16, "dcp")
    found = newest(store)
    assert found is not None
    assert (found.manifest.step, found.manifest.samples) == (2, 16)

    resumed = resolve(_settings(store, SMALL))
    assert resumed is not None
    again = train(
        SMALL,
        tmp_path / "again",
        CHECKPOINT_PATH=str(store),
        ATTEMPT="1",
        GPU_MEMORY_BYTES=str(BUDGET_BYTES),
        RESUME_FROM=str(resumed.directory),
        RESUME_SAMPLES=str(resumed.samples),
    )
    assert again.exit_code == 0, again.output
    assert losses(again) == pytest.approx({step: whole[step] for step in (3, 4, 5, 6)}, rel=1e-5)
    assert (again.report.resumed_samples, again.report.checkpoint_samples) == (16, 48)
    assert losses(failed) == pytest.approx({step: whole[step] for step in (1, 2, 3)}, rel=1e-6)
    with pytest.raises(NotResumableError, match="can resume from it"):
        resolve(_settings(store, "fp32-z2-none-mb8x1", attempt=2))


@pytest.mark.parametrize(
    ("saved", "saved_world", "wanted", "wanted_world"),
    [
        ("fp32-fsdp-none-mb2x2", 2, "fp32-ddp-none-mb4x2", 1),
        ("fp32-ddp-none-mb4x2", 1, "fp32-fsdp-full-mb4x1", 2),
        ("fp32-z2-none-mb2x2-bk1m", 2, "fp32-z3-full-mb4x1-bk1m", 2),
    ],
)
def test_another_sharding_or_world_goes_on_with_the_same_loss(
    saved: str,
    saved_world: int,
    wanted: str,
    wanted_world: int,
    whole: dict[int, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = tmp_path / "store"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # for the conversion, which is a subprocess
    monkeypatch.setenv("TRAINER_ARGUMENTS", "--steps 2")
    first = train(saved, tmp_path / "first", saved_world, CHECKPOINT_PATH=str(store), ATTEMPT="0")
    assert first.exit_code == 0, first.output
    resumed = resolve(_settings(store, wanted, world=wanted_world))
    assert resumed is not None
    monkeypatch.setenv("TRAINER_ARGUMENTS", "--steps 4")
    again = train(wanted, tmp_path / "again", wanted_world, RESUME_FROM=str(resumed.directory), ATTEMPT="1")
    assert again.exit_code == 0, again.output
    assert losses(again) == pytest.approx({step: whole[step] for step in (3, 4)}, rel=1e-5)


def _settings(store: Path, plan: str, attempt: int = 1, world: int = 1) -> Settings:
    return Settings(
        plan=Plan.parse(plan),
        kind=RunKind.TRAIN,
        integration="env",
        global_batch=8,
        sequence_length=32,
        gpus_per_node=world,
        attempt=attempt,
        device=Device.VIRTUAL,
        gpu_memory_bytes=BUDGET_BYTES,
        checkpoint_path=store,
    )


def test_a_probe_evaluates_and_saves_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINER_ARGUMENTS", "--steps 100")
    store = tmp_path / "store"
    probe = train(
        "fp32-z1-none-mb2x4-bk1m", tmp_path / "probe", RUN_KIND="probe", PROBE_STEPS="2", CHECKPOINT_PATH=str(store)
    )
    assert probe.exit_code == 0, probe.output
    assert (probe.report.steps, probe.report.applied.micro_batch) == (2, 2)
    assert (probe.report.evaluation_covered, probe.report.save_covered) == (True, True)
    assert not list(store.iterdir())


def test_a_probe_makes_its_steps_beside_those_that_the_loss_scale_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimpleNamespace(steps=0, skipped_steps=0)
    subject: Any = object.__new__(Trainer)
    subject._engine, subject._settings = engine, SimpleNamespace(probe_steps=2, checkpoint_path=None)

    def stepping(count: int) -> Iterator[None]:
        for number in range(count):
            engine.steps, engine.skipped_steps = number + 1, min(number + 1, 3)
            yield

    monkeypatch.setattr(subject, "_steps", stepping)
    monkeypatch.setattr(subject, "_evaluate", lambda: None)
    subject.probe()
    assert (engine.steps, engine.skipped_steps) == (5, 3)


def test_an_architecture_that_it_does_not_build_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINER_ARGUMENTS", "")
    facts = json.dumps(asdict(replace(from_facts(FACTS), norms_per_layer=3)))
    refused = train(SMALL, tmp_path / "refused", ARCHITECTURE=facts)
    assert refused.exit_code == 2
    assert re.search(r"^memtune: the built-in trainer builds plain decoders .* template", refused.output, re.MULTILINE)
    assert "Traceback" not in refused.output
