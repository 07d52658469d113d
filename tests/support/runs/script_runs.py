"""`memtune run` of programs that come with other packages, and the results of their training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from script_models_and_data import HF_CONFIG
from warm_environment import read_by_libraries, warm_environment
from warm_pythons import LIBRARIES, WarmPython

from memtune.api import API_VERSION, KIND
from memtune.plans.plan import Plan
from memtune.wire.applied import mismatch
from memtune.wire.report import Report, read_report

ROOT = Path(__file__).parents[3]
# A separate environment: its packages would be visible to every test, and imported by libraries that look for them.
PACKAGES = ROOT / ".venv" / "scripts"
# A separate one again: torchtune needs a torchao that other libraries reject as too old.
TORCHTUNE = ROOT / ".venv" / "torchtune"
PROGRAMS = ROOT / "tests" / "scripts" / "programs"
_OWN_PROGRAMS = Path(sys.executable).parent
# What the programs import of each: one Python forks those of all of them.
_LIBRARIES = {
    PACKAGES: (
        *LIBRARIES,
        *("datasets", "evaluate", "litgpt.finetune.full", "lightning", "sentence_transformers", "trl.cli"),
        *("trl.trainer.dpo_trainer", "trl.trainer.reward_trainer", "trl.trainer.sft_trainer"),
    ),
    TORCHTUNE: tuple(
        f"torchtune.{name}" for name in ("_cli.tune", "config", "datasets", "models.llama2", "modules.loss", "training")
    ),
}
_LIMIT_SECONDS = 900
GLOBAL_BATCH = 8
LENGTH = 64
# The loss of each optimizer step as our loops, LitGPT and torchtune write it; the last line of a repeated step counts.
_WRITTEN_LOSS = re.compile(
    r"^(?:\[rank 0\] )?(?:Epoch \d+ \| iter \d+ (?=.*\(step\)$))?"
    r"step (\d+)(?: loss | \| loss train: | \| loss:)([\d.]+)",
    re.MULTILINE | re.IGNORECASE,
)
CHECKPOINTS = "$(MEMTUNE_CHECKPOINT_PATH)"


@dataclass(frozen=True)
class Ended:
    """The result of a job: its status, the report of each attempt, the losses of each step.

    ``said`` is MemTune's output, ``printed`` the program's in all attempts.
    """

    status: dict[str, Any]
    reports: list[Report]
    losses: dict[int, float]
    said: str
    printed: str
    global_batch: int

    @property
    def samples(self) -> int:
        """The samples that the last attempt has trained, including those it resumed from."""
        last = self.reports[-1]
        return (last.resumed_samples or 0) + (last.steps or 0) * self.global_batch

    def check_applied(self) -> None:
        """Check that each attempt applied its plan."""
        for attempt, report in zip(self.status["attempts"], self.reports, strict=True):
            assert not mismatch(Plan.parse(attempt["plan"]), report.applied, 1, False)
            assert report.applied.micro_batch

    def check_recovered(self, losses: dict[int, float], resumed: int, samples: int, rel: float = 5e-3) -> None:
        """Check that it went on after one out-of-memory to its end, with the losses of an undisturbed run."""
        first, last = self.status["attempts"]
        assert (first["verdict"], last["verdict"], last["resumedSamples"]) == ("device-oom", "succeeded", resumed)
        self.check_applied()
        assert self.samples == samples
        assert self.losses == pytest.approx(losses, rel=rel)


def job(command: list[str], plan: str, integration: str = "hf-trainer", **spec: Any) -> dict[str, Any]:
    """Return a job of one virtual GPU that runs ``command`` under ``plan``; ``spec`` adds blocks to its spec."""
    container = {"name": "trainer", "image": "registry.example.com/training", "command": command}
    body = {
        "model": {"hfConfig": HF_CONFIG},
        "training": {"globalBatchSize": GLOBAL_BATCH, "sequenceLength": LENGTH, "attention": "sdpa"},
        "resources": {"gpusPerNode": 1, "gpuMemory": "128Mi", "device": "virtual"},
        "integration": integration,
        "template": {"spec": {"containers": [container]}},
        "tuning": {"mode": "Fixed", "plan": plan, "space": {"backends": ["ddp"], "checkpointing": ["none"]}},
        "checkpoint": {"path": "/checkpoints", "volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
        **spec,
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "script"}, "spec": body}


def shrinking(memory: str, after_step: int, by: str) -> dict[str, Any]:
    """The resources of a virtual GPU that loses memory during the training."""
    shrink = {"afterStep": after_step, "by": by}
    return {"gpusPerNode": 1, "gpuMemory": memory, "device": "virtual", "shrink": shrink}


def python(script: Path, *arguments: object, packages: Path = PACKAGES) -> None:
    """Run a script with the programs' packages, forked after their imports."""
    words = [str(script), *map(str, arguments)]
    environment, read = _environment(packages, _OWN_PROGRAMS), read_by_libraries(_directories(packages))
    forked = WarmPython(words, environment, _LIBRARIES[packages], read=read)
    try:
        printed, _ = forked.communicate(_LIMIT_SECONDS)
    finally:
        forked.kill()
    assert forked.returncode == 0, printed


def run(
    body: dict[str, Any], directory: Path, succeeds: bool = True, packages: Path = PACKAGES, anew: bool = False
) -> Ended:
    """Run a job to its end, and return how it ended; unless ``anew``, its ranks are forked after their imports."""
    directory.mkdir(parents=True, exist_ok=True)
    file, state = directory / "job.yaml", directory / "state"
    file.write_text(yaml.safe_dump(body))
    programs = _OWN_PROGRAMS if anew else warm_environment(_LIBRARIES[packages], _directories(packages)) / "bin"
    done = subprocess.run(
        [str(programs / "python"), "-m", "memtune_cli.main", "run", str(file), "--state", str(state)],
        env=_environment(packages, programs),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    runs = sorted(state.glob("runs/*-train-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    logs = [(path / "log").read_text() for path in runs]
    assert (done.returncode == 0) is succeeds, done.stdout + "".join(f"\n{log[-4000:]}" for log in logs)
    status = json.loads((state / "job.json").read_text())["status"]
    reports = [read_report((path / "report.json").read_text()) for path in runs]
    written = [*logs, *(path.read_text() for path in sorted(state.glob("checkpoints/**/log_*.txt")))]
    losses = losses_below(state) or {int(step): float(loss) for step, loss in _WRITTEN_LOSS.findall("".join(written))}
    return Ended(status, reports, losses, done.stdout, "".join(logs), body["spec"]["training"]["globalBatchSize"])


def _environment(packages: Path, programs: Path) -> dict[str, str]:
    places = (programs, packages / "bin", PACKAGES / "bin", _OWN_PROGRAMS)
    return {
        **os.environ,
        "PATH": os.pathsep.join([*map(str, places), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([*sys.path, *map(str, _directories(packages))]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _directories(packages: Path) -> tuple[Path, ...]:
    return tuple(dict.fromkeys((packages, PACKAGES)))


def losses_below(directory: Path) -> dict[int, float]:
    """The loss of each step, from the last checkpoint of transformers' Trainer."""
    states = sorted(directory.glob("**/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    history = json.loads(states[-1].read_text())["log_history"] if states else []
    return {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
