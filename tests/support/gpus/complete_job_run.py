"""A job from its first probe to its end, with a recovery in between, on a virtual or a real GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launches import own_python
from memtune_run import run_to_the_end

from memtune.units import MIB
from memtune.wire.report import Device

# Mostly logits, which are computed quickly.
FACTS = {"hiddenSize": 64, "layers": 2, "heads": 2, "ffnSize": 128, "vocabSize": 8192}
_SCRIPT = Path(__file__).parents[1] / "programs" / "crowded_trainer.py"
# Of 2 GiB it leaves enough for a quarter of the largest micro-batch, but on CUDA, with its workspaces, not for half.
# Which of the two is the best alone is left to a GPU, which computes either in milliseconds.
_CROWD_BYTES = 1600 * MIB
_STEPS = 4


def _share(device: Device) -> int:
    """A virtual GPU, whose kernels are a CPU's, has a quarter of the rows and bytes."""
    return 4 if device is Device.VIRTUAL else 1


def job_of(device: Device, directory: Path, python: str = "") -> dict[str, Any]:
    from memtune.api import API_VERSION, KIND  # pydantic is needed when this runs, not when it is collected

    share = _share(device)
    options = ["--steps", str(_STEPS), "--save-every", "1"]
    words = [python or own_python(), str(_SCRIPT), json.dumps(FACTS), str(_CROWD_BYTES // share), *options]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "whole"},
        "spec": {
            "model": {"architecture": FACTS},
            "training": {"globalBatchSize": 64 // share, "sequenceLength": 128, "attention": "sdpa"},
            "resources": {"gpusPerNode": 1, "gpuMemory": f"{2048 // share}Mi", "device": str(device)},
            "integration": "sdk",
            "template": {"spec": {"containers": [{"name": "trainer", "image": "none", "command": words}]}},
            "tuning": {
                "maxProbes": 2,
                "probeSteps": 2,
                "space": {"precision": ["fp32"], "checkpointing": ["none"], "backends": ["ddp"]},
            },
            "checkpoint": {"path": str(directory / "checkpoints")},
        },
    }


def assert_job_recovers_and_finishes(device: Device, directory: Path, python: str = "") -> None:
    """Check that `memtune run` probes, launches, runs out of memory, and finishes on a smaller plan."""
    file = directory / "job.yaml"
    file.write_text(json.dumps(job_of(device, directory, python)))  # JSON is YAML, too
    status = run_to_the_end(file, directory / "state", seconds=900)
    assert {probe["verdict"] for probe in status["probes"]} == {"succeeded"}
    first, *others, last = status["attempts"]
    assert {each["verdict"] for each in (first, *others)} == {"device-oom"}
    assert status["oomRetries"] == len(others) + 1
    assert (last["verdict"], last["resume"]) == ("succeeded", "direct")
    assert last["resumedSamples"] == 2 * 64 // _share(device)
    assert last["plan"] != first["plan"]
