"""torch's fake process group: one rank of several that do not exist, and what the group leaves undone."""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore


def join(world: int) -> None:
    """Become rank 0 of ``world`` ranks. Nothing is sent, and what others would send is what this rank has."""
    os.environ.setdefault("LOCAL_RANK", "0")  # for DeepSpeed
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    scatter_own(world)


def scatter_own(world: int) -> None:
    """Make this rank's part the result of a reduction that is scattered, as newer releases of torch do by themselves.

    Up to 2.11, the group leaves the result as it was. Such gradients are no numbers, and a loss scale skips every step.
    """
    plain = distributed.reduce_scatter_tensor
    result = torch.full((1,), -1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of another name in newer releases
        plain(result, torch.zeros(world))
    if result.item() == 0:
        return

    @functools.wraps(plain)
    def scattered(output: torch.Tensor, input: torch.Tensor, *rest: Any, **more: Any) -> Any:  # noqa: A002  # torch's
        output.copy_(input.view(-1)[: output.numel()].view_as(output))
        return plain(output, input, *rest, **more)

    distributed.reduce_scatter_tensor = scattered


def average_in_place(model: Any) -> None:
    """Make DDP average in place: the fake group gives its reducer no result to unpack; this holds as much."""
    model.register_comm_hook(None, lambda _, bucket: _averaged(bucket))


def _averaged(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer()
    devices = [buffer.device] if buffer.device.type == "cuda" else None
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(buffer.div_(distributed.get_world_size()))
    return future
