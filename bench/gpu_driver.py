"""The version of the NVIDIA driver: nvidia-smi is not on every machine that has one."""

from __future__ import annotations

import ctypes
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from memtune_runner.rank.driver import driver_version

UNKNOWN = "unknown"
_SMI_SECONDS = 10.0
_VERSION = r"(\d+\.[\d.]*\d)"


def driver() -> str:
    """The driver's version by nvidia-smi; if that is missing, fails or hangs, by the kernel module or the library's
    name.
    """
    return _of_nvidia_smi() or driver_version() or of_library() or UNKNOWN


def of_library() -> str | None:
    """The version in the file name of the library that everything with CUDA loads, libcuda.so.580.65.06 say.

    To load it uses no GPU yet.
    """
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        if found := re.search(rf"/libcuda\.so\.{_VERSION}$", loaded, re.MULTILINE):
            return found[1]
    return None


def _of_nvidia_smi() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SMI_SECONDS).stdout
        if found := re.match(_VERSION, told):
            return found[1]
    return None
