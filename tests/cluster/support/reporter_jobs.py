"""Jobs whose runs are reporters: pods that start within seconds, do what the test says, and report as workers do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import reporter
from pods import IMAGE, Cluster
from reporter import WELL, Act

from memtune.api import API_VERSION, KIND

_SOURCE = Path(reporter.__file__).read_text()
_FACTS = {"hiddenSize": 64, "layers": 8, "heads": 4, "ffnSize": 176, "vocabSize": 2048}
_SPACE = {"precision": ["fp32"], "checkpointing": ["none", "full"], "backends": ["ddp"]}

# Launched unmeasured, for scenarios in which probes teach nothing.
FIXED = {"mode": "Fixed", "plan": "fp32-ddp-none-mb4x4-sdpa"}


def reporter_job(name: str, probe: Act = WELL, train: Sequence[Act] = (WELL,), **spec: Any) -> dict[str, Any]:
    """A job on one virtual GPU with one probe; ``train`` has an act for each attempt, ``spec`` replaces fields."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "model": {"architecture": _FACTS},
            "training": {"globalBatchSize": 16, "sequenceLength": 256, "attention": "sdpa"},
            "resources": {"gpuMemory": "2Gi", "device": "virtual"},
            "template": pod_template(command(probe, train)),
            "tuning": {"space": _SPACE, "maxProbes": 1},
            # Gone with the pod: nothing is saved, and an attempt that was taken away may start anew.
            "checkpoint": {"path": "/tmp/checkpoints"},
            **spec,
        },
    }


def command(probe: Act = WELL, train: Sequence[Act] = (WELL,)) -> list[str]:
    """The command line of a reporter. By its first word it is a program, so no hooks enter it."""
    acts = {"probe": [asdict(probe)], "train": [asdict(act) for act in train]}
    return ["env", "python3", "-c", _SOURCE, json.dumps(acts)]


def pod_template(words: list[str], **spec: Any) -> dict[str, Any]:
    """A template with one container."""
    return {"spec": {"containers": [{"name": "trainer", "image": IMAGE, "command": words}], **spec}}


def let_go(cluster: Cluster, namespace: str, pod: str) -> None:
    """Let a reporter that waits come to its end."""
    code, said = cluster.execute(namespace, pod, ["touch", reporter.GO])
    assert code == 0, said
