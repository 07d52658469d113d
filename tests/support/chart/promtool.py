"""Runs Prometheus's promtool, if installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def check_rules(file: Path, count: int) -> None:
    """Check a file with this number of rules."""
    assert f"{count} rules found" in _run("check", "rules", str(file))


def try_rules(file: Path) -> None:
    """Run the unit tests of rules."""
    assert "SUCCESS" in _run("test", "rules", str(file))


def check_config(file: Path) -> None:
    """Check a configuration and the rules that it names."""
    assert "is valid prometheus config file syntax" in _run("check", "config", str(file))


def check_metrics(exposition: str) -> None:
    """Check the text of a scrape; promtool must not complain, not even about style."""
    assert _run("check", "metrics", text=exposition) == ""


def _run(*arguments: str, text: str = "") -> str:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; on Debian: apt-get install prometheus")
    done = subprocess.run([promtool, *arguments], input=text, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
