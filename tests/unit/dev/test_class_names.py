"""A public class has a name that no other public class of its distribution has."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "distribution",
    ["core/memtune", "operator/memtune_operator", "runner/memtune_runner", "cli/memtune_cli"],
)
def test_no_two_public_classes_have_the_same_name(distribution: str) -> None:
    files = defaultdict[str, list[str]](list)
    for path in sorted((ROOT / distribution).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(ROOT)))
    assert files
    assert {name: places for name, places in files.items() if len(places) > 1} == {}
