"""The common part of DDP and FSDP2: torch's gradients, clipping, loss scale and distributed checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from memtune_runner.engine import eight_bit_states
from memtune_runner.engine.loss_scale import LossScaler
from memtune_runner.engine.precision import compute_dtype
from memtune_runner.engine.protocol import Setup, Updated


class TorchBackend(ABC):
    """A wrapped model with a torch optimizer. Subclasses differ in how gradients are reduced."""

    def __init__(self, model: nn.Module, setup: Setup) -> None:
        self.model = model
        self.optimizer = setup.make_optimizer(model)
        self.scaler = LossScaler() if compute_dtype(setup.settings.plan) is torch.float16 else None
        self._max_grad_norm = setup.max_grad_norm

    @abstractmethod
    def begin(self, is_last: bool) -> None:
        """Choose what the next backward pass reduces."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of the micro-batch."""
        (loss * self.scaler.scale if self.scaler else loss).backward()

    def step(self) -> Updated:
        """Clip, step and clear the gradients. A norm that is not finite means that fp16 overflowed."""
        learning = [each for each in self.model.parameters() if each.grad is not None]
        norm = self._unscaled_norm(learning)
        overflowed = self.scaler is not None and not bool(norm.isfinite())
        if not overflowed:
            if self._max_grad_norm is not None:
                clip_grads_with_norm_(learning, self._max_grad_norm, norm)
            self.optimizer.step()
        if self.scaler:
            self.scaler.update(overflowed)
        self.optimizer.zero_grad()
        return Updated(float(norm), overflowed)

    def _unscaled_norm(self, learning: list[nn.Parameter]) -> torch.Tensor:
        """Return the norm of the whole gradient over all ranks, without the loss scale."""
        gradients = [each.grad for each in learning if each.grad is not None]
        if self.scaler:
            torch._foreach_mul_(gradients, 1 / self.scaler.scale)
        norm = get_total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def save(self, directory: Path) -> None:
        """Write a sharded torch.distributed.checkpoint with the parameter names of the unwrapped model."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state_dict_saver.save({"model": model, "optimizer": optimizer}, checkpoint_id=directory)

    def load(self, directory: Path) -> None:
        """Read it on any number of ranks, under either backend."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        with eight_bit_states.CutAnywhere():
            state_dict_loader.load(
                {"model": model, "optimizer": optimizer}, checkpoint_id=directory, planner=eight_bit_states.Planner()
            )
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
