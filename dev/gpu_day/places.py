"""Paths in the checkout, and the environment variables with which Python finds the packages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREPARED = Path("build/gpu-day")
RESULTS = Path("build/gpu-day-results")  # not among the files brought along, which may be replaced
MEASURED = Path("bench/results")
WHEELS, SITE, PREDICTIONS = PREPARED / "wheels", PREPARED / "site", PREPARED / "predictions.json"
EMULATED = PREPARED / "emulated"
EMULATED_PYTHON = Path(".venv-emulated/bin/python")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")  # wheels are prepared for these
_PACKAGES = ("core", "operator", "runner", "cli", "bench")


def development_python() -> str:
    """The Python of `make env`, even if another one runs this."""
    own = ROOT / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def variables(site: Path = ROOT / SITE) -> dict[str, str]:
    """The environment for a Python with MemTune's packages first and the prepared wheels after them."""
    own = [*(str(ROOT / each) for each in _PACKAGES), str(site)]
    path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # of plugins that were not tested with these tests
        "HF_HUB_OFFLINE": "1",  # a library that asks the hub would wait for a network that is not there
        # All ranks are on this machine, whose name may have no address.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
