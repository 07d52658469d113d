"""How many files a reader has to open to follow a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from entered_files import entered

import memtune
import memtune_cli
from memtune_cli.main import main

# A job with a factory needs torch to be traced, and then the replays.
EXAMPLES = [
    path for path in sorted(Path("examples").glob("*.yaml")) if "factory:" not in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_planning_a_job_enters_few_files(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = entered(lambda: main(["plan", str(example)]), memtune, memtune_cli)
    assert "Plans that fit" in capsys.readouterr().out
    assert len([path for path in found if path.startswith("memtune/")]) <= 30
    assert len(found) <= 40
