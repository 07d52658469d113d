"""The version of the NVIDIA driver on this node."""

from __future__ import annotations

import re
from pathlib import Path

# The container toolkit mounts it into every container with a GPU.
VERSION_FILE = Path("/proc/driver/nvidia/version")
# As in "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build".
_VERSION = re.compile(r"\b\d+(?:\.\d+)+\b")


def driver_version(file: Path = VERSION_FILE) -> str | None:
    """Return the version of the driver; None if no file has it."""
    try:
        found = _VERSION.search(file.read_text())
    except OSError:
        return None
    return found[0][:16] if found else None
