"""The pure-Python packages that the runner carries along, under a private name where it is installed into an image.

The image may have its own prometheus-client, of any version; ours must neither shadow it nor be shadowed by it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

PRIVATE_PACKAGE = "memtune_runner._vendored"


def prometheus_client() -> ModuleType:
    """The client library for metrics; imported when the first metric is served, never before."""
    try:
        return import_module(f"{PRIVATE_PACKAGE}.prometheus_client")
    except ModuleNotFoundError as missing:
        if not PRIVATE_PACKAGE.startswith(missing.name or "-"):
            raise
        return import_module("prometheus_client")
