"""A valid spec to break rules with."""

from __future__ import annotations

import copy
from typing import Any

FACTS = {"hiddenSize": 64, "layers": 2, "heads": 4, "ffnSize": 128, "vocabSize": 1000}
POD: dict[str, Any] = {"spec": {"containers": [{"name": "trainer"}]}}


def spec(**changes: Any) -> dict[str, Any]:
    """A valid spec; ``tuning__space={...}`` merges into that block, None removes a field."""
    made: dict[str, Any] = {
        "model": {"architecture": dict(FACTS)},
        "training": {"globalBatchSize": 96, "sequenceLength": 128},
    }
    for path, fields in changes.items():
        *parents, last = path.split("__")
        block = made
        for parent in parents:
            block = block.setdefault(parent, {})
        if isinstance(fields, dict):
            block.setdefault(last, {}).update(copy.deepcopy(fields))
        else:
            block[last] = fields
    return made


def job(made: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "memtune.dev/v1alpha1",
        "kind": "MemoryTunedJob",
        "metadata": {"name": "a"},
        "spec": made,
        "status": status,
    }
