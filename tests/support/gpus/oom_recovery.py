"""An out-of-memory as the launcher reports it, and the recovery on the next rung down.

The same on a virtual and a real GPU: a run is given less memory, on CUDA by torch.cuda.set_per_process_memory_fraction.
A virtual GPU, whose kernels are a CPU's, has a quarter of the rows and bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from launches import Launch, Place, own_python

from memtune.gpus.gpu import nearest
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.plain import from_facts
from memtune.planning.ladder import Downgrade, Failure, descend
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB
from memtune.wire.report import Device, Ending, Phase, Report

# Mostly logits: no other gibibyte is computed as quickly.
FACTS = from_facts({"hiddenSize": 64, "layers": 2, "heads": 2, "ffnSize": 128, "vocabSize": 8192})
LENGTH = 64


@dataclass(frozen=True)
class Trainer:
    """Starts the built-in trainer in a directory: ``train(directory, plan, attempt, steps=2, variables=None)``.

    ``python`` is that of a warm environment.
    """

    runner: Path
    device: Device
    python: str | None = None

    @property
    def little_bytes(self) -> int:
        """Less memory than the large plan takes; twice as much is plenty."""
        return 512 * MIB if self.device is Device.VIRTUAL else 2 * GIB

    @property
    def large(self) -> Plan:
        rows = 96 if self.device is Device.VIRTUAL else 384
        return Plan.parse(f"fp32-ddp-none-mb{rows}x1-sdpa")

    def __call__(
        self, directory: Path, plan: Plan, attempt: int, steps: int = 2, variables: Mapping[str, str] | None = None
    ) -> Launch:
        directory.mkdir(exist_ok=True)
        environment = {
            "PLAN": json.dumps(plan.to_json()),
            "ATTEMPT": str(attempt),
            "DEVICE": str(self.device),
            "GLOBAL_BATCH": str(self.large.global_batch(1)),
            "SEQUENCE_LENGTH": str(LENGTH),
            "GPU_MEMORY_BYTES": str(2 * self.little_bytes),
            "ARCHITECTURE": json.dumps(asdict(FACTS)),
            "CHECKPOINT_PATH": str(directory / "checkpoints"),
            **(variables or {}),
        }
        words = (own_python(), "-m", "memtune_runner.trainer", "--steps", str(steps), "--save-every", "1")
        named = {f"MEMTUNE_{name}": each for name, each in environment.items()}
        return Place(self.runner, directory, self.python).run(*words, variables=named)

    def next_rung(self, report: Report) -> Downgrade:
        """The ladder's offer for a report."""
        # pydantic is needed when this runs, not when it is collected
        from memtune.controller.out_of_memory_kind import kind_of_oom
        from memtune.controller.reported_numbers import demanded_bytes

        gpu = nearest(self.little_bytes).with_memory(self.little_bytes)
        batch = self.large.global_batch(1)
        workload = Workload(FACTS, gpu, batch, LENGTH, virtual=self.device is Device.VIRTUAL)
        failure = Failure(kind_of_oom(report), max(demanded_bytes([report]) - self.little_bytes, 0))
        found = descend(workload, Predictor(workload), self.large, failure)
        assert isinstance(found, Downgrade)
        assert found.plan.global_batch(1) == batch
        return found

    def told_of(self, failed: Launch) -> None:
        """An out-of-memory report has the phase, the largest components and the newest checkpoint."""
        report = failed.report
        assert (failed.exit_code, report.ending) == (85, Ending.DEVICE_OOM), failed.stdout + failed.stderr
        assert report.phase in (Phase.FORWARD, Phase.BACKWARD)
        assert report.largest[0].name == "activations and others"
        assert report.largest[0].size_bytes > self.little_bytes / 2
        assert report.memory.device_total_bytes == self.little_bytes
        assert report.checkpoint_samples == self.large.global_batch(1)

    def goes_on(self, again: Launch, whole: Launch) -> None:
        """A relaunch made the second step with the same loss as an uninterrupted run."""
        assert (again.exit_code, again.report.ending) == (0, Ending.SUCCEEDED), again.stdout + again.stderr
        assert again.report.resumed_samples == self.large.global_batch(1)
        assert losses(again) == pytest.approx({2: losses(whole)[2]}, rel=1e-5)


def losses(launch: Launch) -> dict[int, float]:
    """Return the loss of each step that a launch printed."""
    found = re.findall(r"step (\d+) loss ([\d.]+)", launch.stdout)
    return {int(step): float(loss) for step, loss in found}


def given_less_after_a_step(train: Trainer, directory: Path) -> None:
    """One step with enough memory, the next with too little, and the rung below with as little."""
    whole = train(directory / "whole", train.large, 1)
    assert sorted(losses(whole)) == [1, 2], whole.stdout + whole.stderr
    began = train(directory / "less", train.large, 1, steps=1)
    assert began.report.ending is Ending.SUCCEEDED, began.stdout + began.stderr
    little = {"GPU_MEMORY_BYTES": str(train.little_bytes)}
    failed = train(directory / "less", train.large, 2, variables=little)
    train.told_of(failed)
    rung = train.next_rung(failed.report)
    train.goes_on(train(directory / "less", rung.plan, 3, variables=little), whole)
