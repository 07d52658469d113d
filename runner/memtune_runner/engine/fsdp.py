"""The FSDP2 backend: sharded weights, gradients and optimizer states, gathered block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from memtune.plans.fsdp_config import fsdp_config
from memtune_runner.engine.blocks import repeated_blocks
from memtune_runner.engine.precision import cast_weights
from memtune_runner.engine.protocol import Setup
from memtune_runner.engine.torch_backend import TorchBackend
from memtune_runner.rank.settings import Settings

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class FsdpBackend(TorchBackend):
    """``fully_shard`` on each repeated block and on the root."""

    def __init__(self, model: nn.Module, setup: Setup) -> None:
        config = shard(model, setup.settings, setup.device)
        # FSDP casts weights and inputs itself; autocast is only for the loss around the model.
        model.forward = torch.autocast(setup.device.type, enabled=False)(model.forward)
        self._root: FSDPModule = model  # type: ignore[assignment]  # fully_shard gives the model that class
        self._replicates = "replicate" in config["mesh"]
        super().__init__(model, setup)

    def begin(self, is_last: bool) -> None:
        """Reduce after each micro-batch, or unsharded gradients would pile up; only replicas' all-reduce can wait."""
        if self._replicates:
            self._root.set_requires_all_reduce(is_last)


def shard(model: nn.Module, settings: Settings, device: torch.device) -> dict[str, Any]:
    """Shard a model under the plan and return the settings used."""
    cast_weights(model, settings.plan)
    config = fsdp_config(settings.plan, settings.nodes, settings.gpus_per_node)
    arguments = _arguments(config, device)
    for unit in [*(block for row in repeated_blocks(model) for block in row), model]:
        for each in _unsharded(unit):
            # All ranks must shard the same weights; the other backends broadcast them themselves.
            each.data = each.data.to(device)
            distributed.broadcast(each.data, 0)
        fully_shard(unit, **arguments)
    return config


def _arguments(config: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Convert plain settings to torch's arguments."""
    mesh, policy, offload = config["mesh"], config["mp_policy"], config["offload_policy"]
    dtypes = {name: _DTYPES.get(value, value) for name, value in policy.items()}
    return {
        "mesh": init_device_mesh(device.type, tuple(mesh.values()), mesh_dim_names=tuple(mesh)),
        "reshard_after_forward": config["reshard_after_forward"],
        "mp_policy": MixedPrecisionPolicy(**dtypes),
        "offload_policy": CPUOffloadPolicy(**offload) if offload else OffloadPolicy(),
    }


def _unsharded(unit: nn.Module) -> Iterator[torch.Tensor]:
    for each in [*unit.parameters(), *unit.buffers()]:
        if not isinstance(each, DTensor):
            yield each
