"""Prometheus's own tool, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def check_rules(file: Path, count: int) -> None:
    """Let it read a file of so many rules."""
    assert f"{count} rules found" in _run("check", "rules", str(file))


def try_rules(file: Path) -> None:
    """Let it run the unit tests of rules."""
    assert "SUCCESS" in _run("test", "rules", str(file))


def _run(*arguments: str) -> str:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; on Debian: apt-get install prometheus")
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
