"""An `nvidia-smi` for the emulated GPU, for scripts that call it.

The command's own Python runs this file without MemTune's packages; the preloaded library answers it as NVML would.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import sys
from pathlib import Path

NAME = "nvidia-smi"
_NOT_KNOWN = "[N/A]"
_MIB = 2**20


def beside(directory: Path, python: str, path: str | None) -> str:
    """Write the program into a directory and return a PATH that finds it first."""
    programs = directory / "bin"
    programs.mkdir()
    program = programs / NAME
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} -I {shlex.quote(__file__)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return f"{programs}{os.pathsep}{path or os.defpath}"


def main(words: list[str]) -> int:
    """Answer common queries: the list of GPUs, properties, or the status page."""
    options = _options(words)
    if options is None:
        print(
            f"{NAME} of the emulated GPU answers -L, --query-gpu=... --format=csv, and no options at all; "
            f"not: {' '.join(words)}",
            file=sys.stderr,
        )
        return 2
    gpus = _gpus(options.get("--id"))
    if not gpus:
        print("No devices were found")
        return 6
    if "-L" in options:
        print("\n".join(f"GPU {facts['index']}: {facts['name']} (UUID: {facts['uuid']})" for facts in gpus))
    elif "--query-gpu" in options:
        print("\n".join(_queried(options["--query-gpu"].split(","), options.get("--format", "csv").split(","), gpus)))
    else:
        print(f"NVIDIA-SMI {gpus[0]['driver_version']} (emulated)", end="  ")
        print(f"Driver Version: {gpus[0]['driver_version']}  CUDA Version: {gpus[0]['cuda_version']}")
        for facts in gpus:
            print(f"  {facts['index']}  {facts['name']}  {_NOT_KNOWN} / {facts['memory.total']}MiB")
    return 0


def _options(words: list[str]) -> dict[str, str] | None:
    """Return the options under their long names; None if one is unknown."""
    longer = {"-i": "--id", "--list-gpus": "-L"}
    found: dict[str, str] = {}
    left = list(words)
    while left:
        name, equals, value = left.pop(0).partition("=")
        name = longer.get(name, name)
        if name not in ("-L", "--query-gpu", "--format", "--id"):
            return None
        if name != "-L" and not equals:
            if not left:
                return None
            value = left.pop(0)
        found[name] = value
    return found


def _queried(names: list[str], form: list[str], gpus: list[dict[str, str]]) -> list[str]:
    names = [name.strip() for name in names]
    has_units = "nounits" not in [word.strip() for word in form]
    units = {name: " MiB" for name in names if name.startswith("memory.") and has_units}
    titles = [f"{name} [MiB]" if name.startswith("memory.") else name for name in names]
    rows = [
        ", ".join(facts[name] + units.get(name, "") if name in facts else _NOT_KNOWN for name in names)
        for facts in gpus
    ]
    return rows if "noheader" in [word.strip() for word in form] else [", ".join(titles), *rows]


def _gpus(wanted: str | None) -> list[dict[str, str]]:
    """Return the facts of all GPUs, or of those whose number or UUID is wanted; of none if one is not there."""
    count = ctypes.c_uint()
    ctypes.CDLL(None).nvmlDeviceGetCount_v2(ctypes.byref(count))
    gpus = [_facts(index, count.value) for index in range(count.value)]
    names = [name.strip() for name in wanted.split(",")] if wanted else [facts["index"] for facts in gpus]
    found = [facts for name in names for facts in gpus if name in (facts["index"], facts["uuid"])]
    return found if len(found) == len(names) else []


def _facts(index: int, count: int) -> dict[str, str]:
    """Query the library, which cannot know the memory that another process uses."""
    nvml = ctypes.CDLL(None)
    text = ctypes.create_string_buffer(96)

    def said(function: str, *device: ctypes.c_void_p) -> str:
        getattr(nvml, function)(*device, text, len(text))
        return text.value.decode()

    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    version, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    nvml.nvmlDeviceGetMemoryInfo(device, memory)
    nvml.nvmlSystemGetCudaDriverVersion(ctypes.byref(version))
    nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    uuid = said("nvmlDeviceGetUUID", device)
    return {
        "name": said("nvmlDeviceGetName", device),
        "gpu_name": said("nvmlDeviceGetName", device),
        "uuid": uuid,
        "gpu_uuid": uuid,
        "driver_version": said("nvmlSystemGetDriverVersion"),
        "cuda_version": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "memory.total": str(memory[0] // _MIB),
        "compute_cap": f"{major.value}.{minor.value}",
        "count": str(count),
        "index": str(index),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
