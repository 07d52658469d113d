"""The DDP backend: replicas on all ranks, gradients averaged once per optimizer step."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from memtune_runner.engine.precision import cast_weights
from memtune_runner.engine.protocol import Setup
from memtune_runner.engine.torch_backend import TorchBackend


class DdpBackend(TorchBackend):
    """Plain DistributedDataParallel."""

    def __init__(self, model: nn.Module, setup: Setup) -> None:
        cast_weights(model, setup.settings.plan)
        self._ddp = DistributedDataParallel(model.to(setup.device))
        super().__init__(self._ddp, setup)

    def begin(self, is_last: bool) -> None:
        """Let only the last backward pass reduce."""
        # Every rank holds whole gradients and buckets anyway, so waiting saves traffic and costs no memory.
        self._ddp.require_backward_grad_sync = is_last
