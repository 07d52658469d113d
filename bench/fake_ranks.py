"""torch's fake process group: one rank of several that do not exist, and what the group leaves undone."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore


def join(world: int) -> None:
    """Become rank 0 of ``world`` ranks. Nothing is sent, and results are what was in the buffer."""
    os.environ.setdefault("LOCAL_RANK", "0")  # for DeepSpeed
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)


def average_in_place(model: Any) -> None:
    """Make DDP average in place: the fake group gives its reducer no result to unpack; this holds as much."""
    model.register_comm_hook(None, lambda _, bucket: _averaged(bucket))


def _averaged(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer()
    devices = [buffer.device] if buffer.device.type == "cuda" else None
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(buffer.div_(distributed.get_world_size()))
    return future
