"""An out-of-memory as the launcher reports it, and the recovery on the next rung down.

The same on a virtual and a real GPU: a run is given less memory, on CUDA by torch.cuda.set_per_process_memory_fraction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from launches import Launch, Place, own_python

from memtune.gpus.gpu import nearest
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.plain import from_facts
from memtune.planning.ladder import Downgrade, Failure, descend
from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune.wire.report import Device, Ending, Phase, Report

# Mostly logits: no other gibibyte is computed as quickly.
FACTS = from_facts({"hiddenSize": 64, "layers": 2, "heads": 2, "ffnSize": 128, "vocabSize": 8192})
BATCH, LENGTH = 384, 64
LARGE = Plan.parse("fp32-ddp-none-mb384x1-sdpa")
PLENTY_BYTES, LITTLE_BYTES = 4 * GIB, 2 * GIB

Train = Callable[..., Launch]


def trainer(runner: Path, device: Device) -> Train:
    """Starts the built-in trainer in a directory: ``train(directory, plan, attempt, steps=2, NAME=value)``."""

    def train(directory: Path, plan: Plan, attempt: int, steps: int = 2, **told: str) -> Launch:
        directory.mkdir(exist_ok=True)
        variables = {
            "PLAN": json.dumps(plan.to_json()),
            "ATTEMPT": str(attempt),
            "DEVICE": str(device),
            "GLOBAL_BATCH": str(BATCH),
            "SEQUENCE_LENGTH": str(LENGTH),
            "GPU_MEMORY_BYTES": str(PLENTY_BYTES),
            "ARCHITECTURE": json.dumps(asdict(FACTS)),
            "CHECKPOINT_PATH": str(directory / "checkpoints"),
            **told,
        }
        words = (own_python(), "-m", "memtune_runner.trainer", "--steps", str(steps), "--save-every", "1")
        return Place(runner, directory).run(*words, told={f"MEMTUNE_{name}": each for name, each in variables.items()})

    return train


def losses(launch: Launch) -> dict[int, float]:
    """Return the loss of each step that a launch printed."""
    found = re.findall(r"step (\d+) loss ([\d.]+)", launch.stdout)
    return {int(step): float(loss) for step, loss in found}


def next_rung(report: Report) -> Downgrade:
    """The ladder's offer for a report."""
    # pydantic is needed when this runs, not when it is collected
    from memtune.controller.reported_numbers import demanded_bytes, kind_of_oom

    gpu = nearest(LITTLE_BYTES).with_memory(LITTLE_BYTES)
    workload = Workload(FACTS, gpu, BATCH, LENGTH, virtual=report.device is Device.VIRTUAL)
    failure = Failure(kind_of_oom(report), max(demanded_bytes([report]) - LITTLE_BYTES, 0))
    found = descend(workload, Predictor(workload), LARGE, failure)
    assert isinstance(found, Downgrade)
    return found


def told_of(failed: Launch) -> None:
    """An out-of-memory report has the phase, the largest components and the newest checkpoint."""
    report = failed.report
    assert (failed.exit_code, report.ending) == (85, Ending.DEVICE_OOM), failed.stdout + failed.stderr
    assert report.phase in (Phase.FORWARD, Phase.BACKWARD)
    assert report.largest[0].name == "activations and others"
    assert report.largest[0].size_bytes > GIB
    assert report.memory.device_total_bytes == LITTLE_BYTES
    assert report.checkpoint_samples == BATCH


def goes_on(again: Launch, whole: Launch) -> None:
    """A relaunch made the second step with the same loss as an uninterrupted run."""
    assert (again.exit_code, again.report.ending) == (0, Ending.SUCCEEDED), again.stdout + again.stderr
    assert again.report.resumed_samples == BATCH
    assert losses(again) == pytest.approx({2: losses(whole)[2]}, rel=1e-5)


def given_less_after_a_step(train: Train, directory: Path) -> None:
    """One step with enough memory, the next with too little, and the rung below with as little."""
    whole = train(directory / "whole", LARGE, 1)
    assert sorted(losses(whole)) == [1, 2], whole.stdout + whole.stderr
    began = train(directory / "less", LARGE, 1, steps=1)
    assert began.report.ending is Ending.SUCCEEDED, began.stdout + began.stderr
    little = {"GPU_MEMORY_BYTES": str(LITTLE_BYTES)}
    failed = train(directory / "less", LARGE, 2, **little)
    told_of(failed)
    rung = next_rung(failed.report)
    assert rung.plan.global_batch(1) == BATCH
    goes_on(train(directory / "less", rung.plan, 3, **little), whole)
