"""Checks the image before the script starts: a recent enough torch, and the GPUs that the rank was promised."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from memtune.plans.refusals import virtual_refusal
from memtune.wire.report import Device
from memtune_runner.rank.bad_input import BadCommandError, BadInputError
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import Settings

OLDEST_TORCH = (2, 6)


def check_worker(settings: Settings, rank: Rank) -> None:
    """Raise BadInputError if this worker cannot train."""
    check_torch()
    if settings.plan.sharding.backend == "deepspeed" and find_spec("deepspeed") is None:
        raise BadInputError(
            f"plan {settings.plan} needs DeepSpeed, and {sys.executable} has none: install deepspeed in the image, or "
            "set tuning.space.backends to [ddp, fsdp]"
        )
    if settings.device is Device.VIRTUAL and (reason := virtual_refusal(settings.plan)):
        raise BadInputError(f"plan {settings.plan}: {reason}")
    if settings.device is Device.CUDA:
        _check_gpus(rank.local_world)


def check_torch() -> None:
    """Raise BadCommandError unless this Python has a supported torch. Imports nothing."""
    if find_spec("torch") is None:
        raise BadCommandError(f"{sys.executable} has no torch; install torch 2.6 or newer in the image")
    try:
        found = version("torch")
    except PackageNotFoundError:
        return  # built in place, without metadata; only its import gives the version
    if not is_new_enough(found):
        raise BadCommandError(f"torch {found} of {sys.executable} is too old; MemTune needs 2.6 or newer")


def is_new_enough(torch_version: str) -> bool:
    """Whether MemTune supports this version of torch; a version that cannot be parsed is accepted."""
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    return match is None or (int(match[1]), int(match[2])) >= OLDEST_TORCH


def no_gpu() -> str | None:
    """Return why torch can use no GPU here; None if it can."""
    # With NVML, torch counts GPUs without initializing CUDA, after which the script could not fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    if torch.cuda.is_available():
        return None
    build = "" if torch.version.cuda or torch.version.hip else f": torch {torch.__version__} is built without CUDA"
    return f"there is none{build}"


def mig_devices(variables: Mapping[str, str]) -> list[str]:
    """Return the names of the container's MIG slices; the name of a whole GPU begins with GPU."""
    given = variables.get("CUDA_VISIBLE_DEVICES") or variables.get("NVIDIA_VISIBLE_DEVICES") or ""
    return [each.strip() for each in given.split(",") if each.strip().startswith("MIG-")]


def _check_gpus(wanted: int) -> None:
    slices = mig_devices(os.environ)
    if wanted > 1 and slices:
        raise BadInputError(
            f"the run asks for {wanted} GPUs per node, and this container was given MIG slices ({len(slices)}): CUDA "
            "shows a process one slice only; set gpusPerNode to 1 and take a larger slice, or use whole GPUs"
        )
    missing = no_gpu()
    if missing:
        raise BadInputError(f"the run asks for a GPU, and {missing}; use a GPU node, or device: virtual")
    import torch

    if torch.cuda.device_count() < wanted:
        raise BadInputError(
            f"the run asks for {wanted} GPUs per node, and this container sees {torch.cuda.device_count()}; "
            "change gpusPerNode or what the container is given"
        )
