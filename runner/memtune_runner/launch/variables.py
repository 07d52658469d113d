"""The environment of a worker: what torchrun would set, and what measuring a plan needs. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping

from memtune.wire import environment
from memtune.wire.report import Device
from memtune_runner.command.worker_command import ENTER_DIRECTORY
from memtune_runner.rank.settings import Settings


def of_worker(settings: Settings, current: Mapping[str, str], is_program: bool) -> dict[str, str]:
    """Return the variables that all ranks share, to be added to ``current``."""
    common = {
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": settings.run or "memtune",
        # Behind a pipe, Python would buffer its output in blocks.
        "PYTHONUNBUFFERED": current.get("PYTHONUNBUFFERED") or "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": current.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or "1",
    }
    if settings.gpus_per_node > 1 or settings.device is not Device.CUDA:
        # torchrun does the same; otherwise each rank starts one thread per core. The threads of a rehearsal compete
        # with others on the node, and threads that get no core keep the rest waiting.
        common["OMP_NUM_THREADS"] = current.get("OMP_NUM_THREADS") or "1"
    # Empty means none. The checkpoint that the operator named may have been converted since.
    common[environment.RESUME_FROM] = str(settings.resume_from or "")
    common[environment.RESUME_STEP] = str(settings.resumed_step)
    common[environment.RESUME_SAMPLES] = str(settings.resume_samples)
    if settings.device is Device.VIRTUAL:
        common["CUDA_VISIBLE_DEVICES"] = ""
    if is_program:
        own = current.get("PYTHONPATH")
        common["PYTHONPATH"] = os.pathsep.join([str(ENTER_DIRECTORY), *([own] if own else [])])
    return common


def with_resume(text: str, variables: Mapping[str, str]) -> str:
    """Replace references to the checkpoint in a text; its path was unknown when the pod was created."""
    for name in environment.FOUND_BY_LAUNCHER:
        text = text.replace(f"$({name})", variables[name])
    return text
