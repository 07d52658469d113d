"""The pure-Python packages that the runner carries along, installed under a private name.

The image may have its own prometheus-client in any version; neither copy may shadow the other.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

PRIVATE_PACKAGE = "memtune_runner._vendored"


def prometheus_client() -> ModuleType:
    """Import the Prometheus client library when the first metric is served, not before."""
    try:
        return import_module(f"{PRIVATE_PACKAGE}.prometheus_client")
    except ModuleNotFoundError as missing:
        if not PRIVATE_PACKAGE.startswith(missing.name or "-"):
            raise
        return import_module("prometheus_client")
