"""How many files a reader has to open to follow a command."""

from __future__ import annotations

import pytest
from entered_files import entered

import memtune
import memtune_cli
from memtune_cli.main import main

EXAMPLE = "examples/accelerate.yaml"


def test_planning_a_job_enters_few_files(capsys: pytest.CaptureFixture[str]) -> None:
    found = entered(lambda: main(["plan", EXAMPLE]), memtune, memtune_cli)
    assert "Plans that fit" in capsys.readouterr().out
    assert len([path for path in found if path.startswith("memtune/")]) <= 30
    assert len(found) <= 40
