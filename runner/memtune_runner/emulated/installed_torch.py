"""Finds the torch of a command's Python without importing it, which would need the emulation to be built."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memtune_runner.command.command import Command, Kind
from memtune_runner.emulated.elf import MACHINES
from memtune_runner.emulated.errors import ArchitectureError, EmulationError, NoCudaTorchError

# Run by the command's own Python, which may be older.
_LOOK = """
import importlib.util, json, pathlib, platform, runpy, sys
from importlib import metadata
found = {"system": platform.system(), "machine": platform.machine(), "python": platform.python_version()}
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    directory = pathlib.Path(spec.origin).parent
    version = runpy.run_path(str(directory / "version.py"))
    found.update(directory=str(directory), torch=version["__version__"], cuda=version.get("cuda"))
    try:
        found["requires"] = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        pass
    for each in metadata.distributions():
        name = each.metadata["Name"] or ""
        if name.startswith(("nvidia-cudnn-cu", "nvidia-nccl-cu")):
            found.setdefault("installed", {})[name] = each.version
print(json.dumps(found))
"""
_LOOK_SECONDS = 60
_REMEDY = (
    "name a Python that has a CUDA build of it (in a checkout of MemTune, make env-emulated makes .venv-emulated; "
    "elsewhere the wheel alone is enough, without NVIDIA's packages; no GPU is needed)"
)
# A recent release of each library, if it is unknown which one torch was built with.
_CUDNN, _NCCL = (9, 20, 0), (2, 29, 7)


class InstalledTorch(NamedTuple):
    """A CUDA build of torch, and the versions of the NVIDIA libraries that it uses."""

    python: tuple[str, ...]
    directory: Path
    torch: str
    cuda: str
    cudnn: tuple[int, ...]
    nccl: tuple[int, ...]


def find(command: Command) -> InstalledTorch:
    """Return the torch of the Python that a command names, directly or by its launcher."""
    return find_in(_python(command))


def find_in(python: tuple[str, ...]) -> InstalledTorch:
    """Return the torch of a Python, given with its options."""
    found = _look(python)
    if found["system"] != "Linux" or found["machine"] not in MACHINES:
        raise ArchitectureError(
            f"this machine is {found['system']} on {found['machine']}; the emulated GPU needs Linux on "
            + " or ".join(MACHINES)
        )
    if "directory" not in found:
        raise NoCudaTorchError(f"{python[0]} has no torch; {_REMEDY}")
    if not found["cuda"]:
        raise NoCudaTorchError(f"torch {found['torch']} of {python[0]} was not built for CUDA; {_REMEDY}")
    return InstalledTorch(
        python, Path(found["directory"]), found["torch"], found["cuda"],
        _version(found, "nvidia-cudnn-cu", _CUDNN), _version(found, "nvidia-nccl-cu", _NCCL),
    )  # fmt: skip


def _python(command: Command) -> tuple[str, ...]:
    if command.kind is Kind.PROGRAM:
        raise EmulationError(
            f"{command.target} is neither Python nor a launcher that is known; give the command that runs your script, "
            "like python train.py or torchrun train.py"
        )
    named = command.interpreter[0] if command.interpreter else command.launcher
    path = shutil.which(named)
    if path is None:
        raise EmulationError(f"{named} was not found; give its path, or activate the environment that has it")
    if command.interpreter:
        return (path, *command.interpreter[1:])
    beside = Path(path).parent / "python"
    if not beside.exists():
        raise EmulationError(f"no Python lies beside {path}; give the command as python -m {command.launcher} ...")
    return (str(beside),)


def _look(python: Sequence[str]) -> dict[str, Any]:
    try:
        looked = subprocess.run(
            [python[0], "-c", _LOOK], check=True, capture_output=True, text=True, timeout=_LOOK_SECONDS
        )
        return dict(json.loads(looked.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise EmulationError(f"{python[0]} cannot say which torch it has: {error}") from None


def _version(found: dict[str, Any], name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the release of an installed library, or the one that torch's package requires."""
    installed = found.get("installed")
    lines = [f"{key}=={value}" for key, value in installed.items()] if isinstance(installed, dict) else []
    requires = found.get("requires")
    lines += requires if isinstance(requires, list) else []
    for line in lines:
        if match := re.match(rf"{name}\d+ *\(?==(\d+)\.(\d+)\.(\d+)", line):
            return tuple(int(part) for part in match.groups())
    return default
