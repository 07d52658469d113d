"""The backend protocol: the one place where DeepSpeed, FSDP2 and DDP differ for the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import nn

from memtune_runner.engine.loss_scale import LossScaler
from memtune_runner.rank.settings import Settings


class Updated(NamedTuple):
    """One optimizer step. ``gradient_norm`` is the norm before clipping; None if the backend did not compute it."""

    gradient_norm: float | None
    skipped: bool = False


@dataclass(frozen=True)
class Setup:
    """The inputs of a backend besides the model. The optimizer is created once its parameters are final."""

    settings: Settings
    device: torch.device
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    max_grad_norm: float | None


class Backend(Protocol):
    """A library that shards, reduces and steps; holds the wrapped model and the optimizer."""

    @property
    def model(self) -> nn.Module:
        """The wrapped model, for forward passes."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The plan's optimizer, whose learning rate a scheduler changes."""

    @property
    def scaler(self) -> LossScaler | None:
        """The loss scale, if the backend does not save it itself."""

    def begin(self, is_last: bool) -> None:
        """Begin a micro-batch, before its forward pass; ``is_last`` of its optimizer step."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add the micro-batch's gradients, averaged over the ranks."""

    def step(self) -> Updated:
        """Clip, update the weights and clear the gradients; or skip the step if gradients overflowed."""

    def save(self, directory: Path) -> None:
        """Write weights and optimizer in the library's own format. All ranks call it."""

    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote, on as many ranks as the library allows. All ranks call it."""
