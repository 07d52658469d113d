"""Whoever reads a failed test finds what the cluster says of it, wherever it failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAILING = """
import pytest
from failure_reports import tells

@pytest.fixture
def namespace(request):
    tells(request.node, "namespace of " + request.node.name, lambda: "no node has a GPU left")
    tells(request.node, "operator of " + request.node.name, lambda: 1 / 0)

@pytest.fixture
def broken(namespace):
    raise RuntimeError

def test_call(namespace):
    assert False

def test_setup(broken):
    pass

def test_good(namespace):
    pass
"""


def test_a_failure_report_shows_the_namespace_and_the_operator(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "failure_reports", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent / "support")}
    said = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False).stdout
    assert "1 failed, 1 passed, 1 error" in said
    titles = [line.strip("- ") for line in said.splitlines() if " of test_" in line and line.startswith("--")]
    assert sorted(titles) == [
        f"{what} of test_{when}" for what in ("namespace", "operator") for when in ("call", "setup")
    ]
    assert said.count("\nno node has a GPU left") == 2
    assert said.count("\n(not to be had: ZeroDivisionError") == 2
