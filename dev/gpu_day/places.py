"""Where things are, seen from the checkout, and the variables with which its Python finds them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREPARED = Path("build/gpu-day")
RESULTS = PREPARED / "results"
MEASURED = Path("bench/results")
WHEELS, SITE, PREDICTIONS = PREPARED / "wheels", PREPARED / "site", PREPARED / "predictions.json"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")  # that MemTune works with, and wheels are brought along for
_PACKAGES = ("core", "operator", "runner", "cli", "bench")


def development_python() -> str:
    """The Python of `make env`, whichever has started this one."""
    own = ROOT / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def variables(site: Path = ROOT / SITE) -> dict[str, str]:
    """The environment of a Python that has our packages, and behind them what was brought along."""
    own = [*(str(ROOT / each) for each in _PACKAGES), str(site)]
    path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Whatever plugins of pytest are there, they were not tried with our tests.
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
