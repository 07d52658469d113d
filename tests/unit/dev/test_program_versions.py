"""The versions of programs in the documentation are those of the locks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_versions_in_the_table_are_those_of_the_locks() -> None:
    page = (ROOT / "docs" / "programs.md").read_text()
    table = page.partition("## In the tests")[2].partition("Not run:")[0]
    told = re.findall(r"([\w-]+) (\d+\.\d+[\d.]*)", table)
    locks = "".join((ROOT / "tools" / name).read_text() for name in ("scripts.lock", "torchtune.lock", "dev.lock"))
    assert {name for name, _ in told} == {
        *("accelerate", "deepspeed", "evaluate", "lightning", "litgpt", "peft", "sentence-transformers"),
        *("timm", "torchao", "torchtune", "transformers", "trl"),
    }
    assert [f"{name}=={version}" for name, version in told if f"{name}=={version} " not in locks] == []
