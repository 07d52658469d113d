"""A plan that exceeds a virtual GPU of 2 GiB, as the launcher tells of it, and the next rung down, which goes on."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from launches import Launch, Place

from memtune.decide.measuring import demanded_bytes, kind_of_oom
from memtune.gpu_products import nearest
from memtune.ladder import Downgrade, Failure, descend
from memtune.model.plain import from_facts
from memtune.plan import Plan
from memtune.predict.predictor import Predictor
from memtune.report import Ending, Phase
from memtune.units import GIB
from memtune.workload import Workload
from memtune_runner.install import install

# The logits are most of it: no other gibibyte is computed as quickly.
FACTS = from_facts({"hiddenSize": 64, "layers": 2, "heads": 2, "ffnSize": 128, "vocabSize": 8192})
BATCH, LENGTH = 320, 64
LARGE = Plan.parse("fp32-ddp-none-mb320x1-sdpa")
TRAINER = ("python", "-m", "memtune_runner.trainer", "--steps", "2", "--save-every", "1")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pod") / "runner"
    install(directory)
    return directory


def train(runner: Path, directory: Path, plan: Plan, attempt: int, **told: str) -> Launch:
    directory.mkdir(exist_ok=True)
    variables = {
        "PLAN": json.dumps(plan.to_json()),
        "ATTEMPT": str(attempt),
        "GLOBAL_BATCH": str(BATCH),
        "SEQUENCE_LENGTH": str(LENGTH),
        "ARCHITECTURE": json.dumps(asdict(FACTS)),
        "CHECKPOINT_PATH": str(directory / "checkpoints"),
        **told,
    }
    place = Place(runner, directory)
    return place.run(*TRAINER, told={f"MEMTUNE_{name}": value for name, value in variables.items()})


def losses(launch: Launch) -> dict[int, float]:
    found = re.findall(r"step (\d+) loss ([\d.]+)", launch.stdout)
    return {int(step): float(loss) for step, loss in found}


def next_rung(failed: Launch) -> Downgrade:
    """What the ladder offers for what the report tells."""
    report, size_bytes = failed.report, 2 * GIB
    workload = Workload(FACTS, nearest(size_bytes).with_memory(size_bytes), BATCH, LENGTH, virtual=True)
    failure = Failure(kind_of_oom(report), max(demanded_bytes([report]) - size_bytes, 0))
    found = descend(workload, Predictor(workload), LARGE, failure)
    assert isinstance(found, Downgrade)
    return found


def test_a_plan_that_exceeds_two_gib_is_told_of_and_the_next_rung_goes_on_with_the_same_loss(
    runner: Path, tmp_path: Path
) -> None:
    whole = train(runner, tmp_path / "whole", LARGE, 1, GPU_MEMORY_BYTES=str(4 * GIB))
    assert sorted(losses(whole)) == [1, 2], whole.stdout + whole.stderr

    memory = {"GPU_MEMORY_BYTES": str(4 * GIB), "SHRINK": f"1:{2 * GIB}"}
    failed = train(runner, tmp_path / "shrinking", LARGE, 1, **memory)
    report = failed.report
    assert (failed.exit_code, report.ending) == (85, Ending.DEVICE_OOM), failed.stdout + failed.stderr
    assert report.phase in (Phase.FORWARD, Phase.BACKWARD)
    assert report.largest[0].name == "activations and others"
    assert report.largest[0].size_bytes > GIB
    assert "virtual" in report.message
    assert report.memory.device_total_bytes == 2 * GIB
    assert report.checkpoint_samples == BATCH

    rung = next_rung(failed)
    assert rung.plan.global_batch(1) == BATCH
    again = train(runner, tmp_path / "shrinking", rung.plan, 2, **memory)
    assert (again.exit_code, again.report.ending) == (0, Ending.SUCCEEDED), again.stdout + again.stderr
    assert again.report.resumed_samples == BATCH
    assert losses(again) == pytest.approx({2: losses(whole)[2]}, rel=1e-5)
