"""Initializes torch.distributed and selects this rank's device."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch import distributed

from memtune.wire.report import Device
from memtune_runner.rank.settings import Settings, SettingsError

_RENDEZVOUS_TIMEOUT = timedelta(minutes=10)


def connect(settings: Settings) -> torch.device:
    """Initialize torch.distributed unless the script has done so, and return this rank's device."""
    device = _device(settings)
    if not distributed.is_initialized():
        _initialise(device)
    world = distributed.get_world_size()
    if world != settings.world:
        raise SettingsError(f"{world} ranks have come together, the run has {settings.world}; start one for each GPU")
    # DeepSpeed reads it, however the process was started.
    os.environ.setdefault("LOCAL_RANK", str(distributed.get_rank() % settings.gpus_per_node))
    return device


def _device(settings: Settings) -> torch.device:
    if settings.device is Device.VIRTUAL:
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if local_rank >= torch.cuda.device_count():
        raise SettingsError(
            f"local rank {local_rank} has no GPU: torch sees {torch.cuda.device_count()}; "
            "the pod must ask for one GPU per rank, and the image needs a CUDA build of torch"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _initialise(device: torch.device) -> None:
    # With an offload, tensors in host memory are reduced as well.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        distributed.init_process_group(backend, timeout=_RENDEZVOUS_TIMEOUT)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]  # torch exports it at run time
