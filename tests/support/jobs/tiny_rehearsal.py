"""The smallest job that trains: one probe of one plan, then the training, on a virtual GPU."""

from __future__ import annotations

from typing import Any

from memtune.api import API_VERSION, KIND

# So small that a step takes no noticeable time.
ARCHITECTURE = {"hiddenSize": 32, "layers": 2, "heads": 2, "ffnSize": 64, "vocabSize": 128}


def tiny_rehearsal(batch: int, **spec: Any) -> dict[str, Any]:
    """Return the job as a user would write it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "tiny"},
        "spec": {
            "model": {"architecture": ARCHITECTURE},
            "training": {"globalBatchSize": batch, "sequenceLength": 16, "attention": "sdpa"},
            "resources": {"gpusPerNode": 1, "gpuMemory": "2Gi", "device": "virtual"},
            "tuning": {
                "maxProbes": 1,
                "space": {"precision": ["fp32"], "checkpointing": ["none"], "backends": ["ddp"]},
            },
            **spec,
        },
    }
