"""Prints nvidia-smi's output and a line of JSON about the machine; exits with 2 and a message without a GPU."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import metadata

from gpu_driver import UNKNOWN, of_library

_PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "numpy", "pydantic", "pytest")
_SMI_SECONDS = 10
_ASKED = ("driver_version", "memory.used", "mig.mode.current")


def machine() -> dict[str, object]:
    """Describe the machine. Queries nvidia-smi first, since this process's CUDA context would count as foreign
    memory."""
    told = _nvidia_smi()
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "product": properties.name,
        "gpus": torch.cuda.device_count(),
        **told,
        "driver_library": of_library() or UNKNOWN,
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "cuda": torch.version.cuda,
        **{name: _version(name) for name in _PACKAGES},
        "compiler": shutil.which("cc") or "none",
        "cpus": len(os.sched_getaffinity(0)),
        "host_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk_free_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
    }


def _nvidia_smi() -> dict[str, str]:
    """The first GPU as reported by nvidia-smi; unknown where it is missing, and after a timeout."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader"]
    values = [UNKNOWN] * len(_ASKED)
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SMI_SECONDS).stdout
        values = said.partition("\n")[0].split(", ")
    return {f"nvidia_smi_{name.replace('.', '_')}": value.strip() for name, value in zip(_ASKED, values, strict=False)}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def main() -> int:
    """Print everything; return 2 if nothing can be measured."""
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["nvidia-smi"], check=False, timeout=_SMI_SECONDS)
    from memtune_runner.rank.preflight import no_gpu

    try:
        missing = no_gpu()
    except (ImportError, OSError) as error:  # a library of CUDA is missing
        missing = f"torch cannot be imported: {error}"
    if missing:
        print(f"a GPU day needs a CUDA GPU, and {missing}")
        return 2
    print(json.dumps(machine()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
