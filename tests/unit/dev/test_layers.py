"""ARCHITECTURE.md draws the layers that the import contracts of pyproject.toml enforce."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomllib  # type: ignore[import-not-found]  # mypy checks for Python 3.10, which no test of this file runs on

ROOT = Path(__file__).parents[3]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]


def drawn(distribution: str) -> list[set[str]]:
    """The rows below a distribution's line: names, two blanks, and what they are."""
    section = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Layers")[2]
    block = section.split("```")[1].partition(f"/{distribution} ")[2].partition("\n\n")[0]
    rows = re.findall(r"^ {5}(\w+(?: \w+)*) {2,}\S", block, re.MULTILINE)
    return [set(row.split()) for row in rows]


@pytest.mark.parametrize("distribution", ["memtune", "memtune_runner", "memtune_operator", "memtune_cli"])
def test_the_drawn_layers_are_those_of_the_import_contract(distribution: str) -> None:
    (layers,) = (each["layers"] for each in CONTRACTS if each.get("containers") == [distribution])
    assert drawn(distribution) == [set(re.split(" [:|] ", layer)) for layer in layers]
