"""Small jobs with few plans, so that a history of many decisions is fast."""

from __future__ import annotations

from typing import Any

from memtune.api import load_job
from memtune.api.job import Job


def make_job(nodes: int = 1, **spec: Any) -> Job:
    """Return a job of this many one-GPU nodes; ``spec`` replaces blocks of its spec, and tuning field by field."""
    tuning = {
        "space": {"zeroStages": [1, 3], "checkpointing": ["none", "full"], "backends": ["deepspeed"]},
        "maxProbes": 5,
        "maxGpuSeconds": 1000 * nodes,
        **spec.pop("tuning", {}),
    }
    body = {
        "model": {"architecture": {"hiddenSize": 1024, "layers": 12, "heads": 16, "vocabSize": 8000, "ffnSize": 4096}},
        "training": {"globalBatchSize": 16, "sequenceLength": 1024},
        "resources": {"nodes": nodes, "gpusPerNode": 1, "gpuMemory": "8Gi", "device": "virtual"},
        "checkpoint": {"path": "/checkpoints"},
        **spec,
        "tuning": tuning,
    }
    head = {"apiVersion": "memtune.dev/v1alpha1", "kind": "MemoryTunedJob"}
    return load_job({**head, "metadata": {"name": "tiny", "uid": "job-uid", "generation": 1}, "spec": body})


def template(**resources: Any) -> dict[str, Any]:
    """A template whose trainer has these resources."""
    command = ["python", "train.py"]
    container = {"name": "trainer", "image": "mine:1", "command": command, "resources": resources}
    return {"spec": {"containers": [container]}}


def factory_job(**spec: Any) -> Job:
    """A job whose model only a trace describes."""
    factory = {"model": {"factory": "train:build"}, "template": template()}
    return make_job(**{**factory, **spec})
