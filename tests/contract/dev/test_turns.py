"""The order in which workers use the cluster that they share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import turns

CONFTEST = """
import pytest
import turns
from turns import pytest_runtest_protocol

def pytest_sessionstart(session):
    if not session.config.pluginmanager.hasplugin("dsession"):
        turns.begin(session.config)

def pytest_sessionfinish(session):
    turns.end(session.config)
"""
# Two files, one for each of two workers. The one that replaces the cluster would be through first.
REPLACES = """
import time
from pathlib import Path
import pytest

@pytest.mark.alone
@pytest.mark.replaces_the_cluster
def test_replaces():
    Path("ended").write_text(str(len(list(Path().glob("used-*")))))
"""
USES = """
import time
from pathlib import Path
import pytest

@pytest.mark.parametrize("test", range(5))
def test_uses(test):
    time.sleep(0.1)
    assert not Path("ended").exists(), "the cluster that this worker knows is gone"
    Path(f"used-{test}").touch()
"""


def test_a_test_that_replaces_the_cluster_waits_for_all_workers_to_end(tmp_path: Path) -> None:
    marks = "[pytest]\nmarkers =\n    alone\n    replaces_the_cluster\n"
    files = {"conftest.py": CONFTEST, "test_a.py": REPLACES, "test_b.py": USES, "pytest.ini": marks}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "--dist", "loadfile", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(Path(turns.__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "ended").read_text() == "5"
