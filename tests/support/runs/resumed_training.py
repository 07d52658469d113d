"""Trains through a library, and resumes one of its checkpoints under another plan."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import small_trainings
from warm_environment import forked_conversions

from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Way, resumption
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.checkpoints import manifest, resolve
from memtune_runner.rank.settings import Settings

PROGRAMS = Path(__file__).parents[1] / "programs"
_SCRIPTS = {
    "hf-trainer": "trainer_saves.py",
    "accelerate": "accelerate_saves.py",
    "lightning": "lightning_saves.py",
}
_CHECKPOINTS = {"hf-trainer": "checkpoint-4", "accelerate": "step-3", "lightning": "memtune-step-00000008-attempt-0"}


@dataclass
class Whole:
    """A training to its end, and the loss of each of its steps."""

    integration: str
    plan: str
    world: int
    store: Path
    worker: Path = small_trainings.WORKER
    losses: dict[int, float] = field(init=False)

    def __post_init__(self) -> None:
        self.losses = self.train(self.plan, self.world, self.store, ATTEMPT="0")

    def train(self, plan: str, world: int, store: Path, **variables: str) -> dict[int, float]:
        """Return the loss of each step that was made."""
        directory = store.with_name(f"{store.name}-ranks")
        directory.mkdir()
        variables = {"INTEGRATION": self.integration, "CHECKPOINT_PATH": str(store), **variables}
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setenv("SAVES_IN", str(store))
            monkeypatch.setenv("KEPT", "9")
            script = PROGRAMS / _SCRIPTS[self.integration]
            outcome = small_trainings.Workers(self.worker).run(script, plan, directory, world, **variables)[0]
        assert outcome.exit_code == 0, outcome.output[-5000:]
        found = re.findall(r"^step (\d+) (?:of \d+ )?loss ([\d.]+)", outcome.output, re.MULTILINE)
        return {int(step): float(loss) for step, loss in found}

    def goes_on(self, plan: str, world: int, way: Way, store: Path) -> None:
        """Resume from a checkpoint in the middle, as the table says, with the same loss."""
        entry = resumption(Format(self.integration), Plan.parse(self.plan), Plan.parse(plan), self.world == world)
        assert entry.way is way, entry.reason
        source = self.store / _CHECKPOINTS[self.integration]
        with forked_conversions():
            resumed = resolve(self._settings(plan, world, store, source))
        assert resumed is not None
        assert (resumed.directory == source) == (way is Way.DIRECT)
        samples = manifest.read_complete(source).samples
        variables = {"ATTEMPT": "1", "RESUME_FROM": str(resumed.directory), "RESUME_SAMPLES": str(samples)}
        losses = self.train(plan, world, store, **variables)
        rest = {step: loss for step, loss in self.losses.items() if step * 8 > samples}
        assert rest
        assert losses == pytest.approx(rest, rel=1e-4), f"{losses} instead of {rest}"

    def _settings(self, plan: str, world: int, store: Path, source: Path) -> Settings:
        return Settings(
            plan=Plan.parse(plan),
            kind=RunKind.TRAIN,
            integration=self.integration,
            global_batch=8,
            sequence_length=32,
            gpus_per_node=world,
            attempt=1,
            device=Device.VIRTUAL,
            gpu_memory_bytes=1 << 30,
            checkpoint_path=store,
            resume_from=source,
        )
