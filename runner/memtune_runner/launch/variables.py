"""The environment of a worker: what torch's own launcher would have set, and what a plan's measurement needs. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping

from memtune.wire import environment
from memtune.wire.report import Device
from memtune_runner.command.worker_command import ENTER_DIRECTORY
from memtune_runner.rank.settings import Settings


def of_worker(settings: Settings, current: Mapping[str, str], is_program: bool) -> dict[str, str]:
    """The variables that all ranks have in common, beside those in ``current``."""
    common = {
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": settings.run or "memtune",
        # A pipe would hold back what is printed until it makes a block.
        "PYTHONUNBUFFERED": current.get("PYTHONUNBUFFERED") or "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": current.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or "1",
    }
    if settings.gpus_per_node > 1 or settings.device is not Device.CUDA:
        # As torchrun does: otherwise each rank starts as many threads as there are cores. A rehearsal shares these with
        # whatever else is on its node, and threads that are kept from them wait for each other most of the time.
        common["OMP_NUM_THREADS"] = current.get("OMP_NUM_THREADS") or "1"
    # Empty counts as left out; what the operator named may have been converted since.
    common[environment.RESUME_FROM] = str(settings.resume_from or "")
    common[environment.RESUME_SAMPLES] = str(settings.resume_samples)
    if settings.device is Device.VIRTUAL:
        common["CUDA_VISIBLE_DEVICES"] = ""
    if is_program:
        own = current.get("PYTHONPATH")
        common["PYTHONPATH"] = os.pathsep.join([str(ENTER_DIRECTORY), *([own] if own else [])])
    return common


def with_resume(text: str, variables: Mapping[str, str]) -> str:
    """The text with references to the checkpoint filled in, which the pod could not know of."""
    for name in environment.FOUND_BY_LAUNCHER:
        text = text.replace(f"$({name})", variables[name])
    return text
