"""Specs to break rules with, and the part of CEL in which the rules are written, said in Python."""

from __future__ import annotations

import copy
import re
from typing import Any

FACTS = {"hiddenSize": 64, "layers": 2, "heads": 4, "ffnSize": 128, "vocabSize": 1000}
POD: dict[str, Any] = {"spec": {"containers": [{"name": "trainer"}]}}


def spec(**changes: Any) -> dict[str, Any]:
    """A good spec; ``tuning__space={...}`` merges into that block, None takes a field out."""
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


class Block:
    """A block as CEL sees it: fields by name, and a field that is left out is known to be."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        value = self._fields.get(name)
        return Block(value) if isinstance(value, dict) else value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(str(self._fields))


def holds(cel: str, **blocks: dict[str, Any] | None) -> bool:
    """What the part of CEL that the rules use means, said in Python."""
    python = cel.replace("&&", " and ").replace("||", " or ")
    python = re.sub(r"!(?!=)", " not ", python)
    python = re.sub(r"\((has\(\S+\)) \? (.+) : (.+)\)$", r"(\2 if \1 else \3)", python)
    python = re.sub(r"(\w[\w.]*)\.contains\(('[^']*')\)", r"(\2 in \1)", python)
    names: dict[str, Any] = {name: Block(block or {}) for name, block in blocks.items()}
    return bool(eval(python, {"__builtins__": {}, "has": lambda value: value is not None, "int": int}, names))


def defaulted(made: dict[str, Any]) -> dict[str, Any]:
    from memtune.spec.job import JobSpec
    from memtune.spec.load import without_nulls

    return JobSpec.model_validate(without_nulls(made)).model_dump(mode="json", by_alias=True, exclude_none=True)
