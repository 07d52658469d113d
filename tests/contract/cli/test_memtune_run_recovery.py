"""`memtune run` of the quickstart: its GPU loses memory during the training, and the job recovers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from memtune_run import run_to_the_end
from warm_environment import training_python

pytestmark = pytest.mark.long

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"


def undisturbed(directory: Path, plan: str) -> Path:
    """Write the quickstart with a given plan and a GPU that keeps its memory."""
    documents = list(yaml.safe_load_all(QUICKSTART.read_text()))
    spec = documents[-1]["spec"]
    del spec["resources"]["shrink"]
    spec["tuning"] |= {"mode": "Fixed", "plan": plan}
    file = directory / "undisturbed.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return file


def losses(state: Path, attempt: int) -> dict[int, float]:
    log = (state / "runs" / f"quickstart-train-{attempt}" / "log").read_text()
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", log)}


def test_the_quickstart_recovers_from_its_loss_of_memory_with_the_loss_of_an_undisturbed_run(tmp_path: Path) -> None:
    state = tmp_path / "recovered"
    python = training_python()
    status = run_to_the_end(QUICKSTART, state, python=python)
    first, second = status["attempts"]
    assert first["verdict"] == "device-oom"
    assert second["verdict"] == "succeeded"
    assert second["plan"] != first["plan"]
    assert (second["resume"], second["resumedSamples"]) == ("direct", first["checkpointSamples"])
    assert status["oomRetries"] == 1
    assert len(status["probes"]) <= 6

    again = losses(state, second["number"])
    assert min(again) == 1 + first["checkpointSamples"] // 64, "it goes on after the checkpoint"
    run_to_the_end(undisturbed(tmp_path, first["plan"]), tmp_path / "undisturbed", python=python)
    whole = losses(tmp_path / "undisturbed", 1)
    assert again == pytest.approx({step: whole[step] for step in again}, rel=1e-5)
    assert max(again) == max(whole)
