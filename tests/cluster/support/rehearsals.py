"""Jobs of the built-in trainer, whose checkpoints lie where the test and the pods of every node see them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from pods import Cluster
from tiny_rehearsal import ARCHITECTURE

_QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.yaml"


def quickstart(checkpoints: Path, **spec: Any) -> dict[str, Any]:
    """The example without its claim, so that nothing is left of it; by default its GPU keeps its memory."""
    *_, job = yaml.safe_load_all(_QUICKSTART.read_text())
    resources = {name: value for name, value in job["spec"]["resources"].items() if name != "shrink"}
    return {
        **job,
        "spec": {**job["spec"], "resources": resources, "checkpoint": _on_this_machine(checkpoints), **spec},
    }


def small(name: str, checkpoints: Path, plan: str, **spec: Any) -> dict[str, Any]:
    """A job that launches a plan unmeasured, on as many nodes as the batch of 8 has rows for."""
    return {
        "apiVersion": "memtune.dev/v1alpha1",
        "kind": "MemoryTunedJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"architecture": ARCHITECTURE},
            "training": {"globalBatchSize": 8, "sequenceLength": 16, "attention": "sdpa"},
            "resources": {"gpuMemory": "4Gi", "device": "virtual"},
            "tuning": {"mode": "Fixed", "plan": plan},
            "checkpoint": _on_this_machine(checkpoints),
            **spec,
        },
    }


def losses(cluster: Cluster, namespace: str, pod: str) -> dict[int, float]:
    """The loss of each step, as the pod's log tells it."""
    found = re.findall(r"step (\d+) loss ([\d.]+)", cluster.log(namespace, pod))
    return {int(step): float(loss) for step, loss in found}


def _on_this_machine(checkpoints: Path) -> dict[str, Any]:
    # The pods run as nobody in particular.
    checkpoints.mkdir(mode=0o777)
    checkpoints.chmod(0o777)
    return {"path": "/checkpoints", "volume": {"hostPath": {"path": str(checkpoints)}}}
