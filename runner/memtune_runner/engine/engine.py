"""The engine with which a user's script trains under any plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.optim.lr_scheduler import LRScheduler

from memtune.plans.knobs import Offload
from memtune.plans.resume import engine_format
from memtune.wire.report import Phase
from memtune_runner.checkpoints import saving
from memtune_runner.engine import batch_rows
from memtune_runner.engine.attention import attention_watched
from memtune_runner.engine.offload import ActivationOffload
from memtune_runner.engine.precision import autocast
from memtune_runner.engine.protocol import Backend
from memtune_runner.rank import applied_knobs, phases
from memtune_runner.rank.padding import padded
from memtune_runner.rank.progress import Trained
from memtune_runner.rank.settings import Settings

Loss = Callable[[nn.Module, Any], torch.Tensor]
CountTokens = Callable[[Any], int]
_STATE_FILE = "engine.pt"
_PROBE_MICRO_STEPS = 2  # enough for accumulated gradients; peak and fragmentation need no more


class Step(NamedTuple):
    """The result of one optimizer step. ``loss`` is the mean over all tokens of the step and all ranks."""

    loss: torch.Tensor
    gradient_norm: float | None
    skipped: bool


class Engine:
    """Trains one model under one plan::

        for batch in loader:  # this rank's share of the global batch
            for micro in engine.micro_batches(batch):
                engine.backward(engine(micro))
            engine.step()

    The gradient is that of the mean loss over all tokens of the global batch, so it is the same under every plan.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        device: torch.device,
        loss: Loss,
        tokens: CountTokens,
        scheduler: LRScheduler | None = None,
    ) -> None:
        self.settings = settings
        self.device = device
        self.steps = 0  # optimizer steps, including skipped ones
        self.skipped_steps = 0
        self.samples = 0  # rows consumed by all ranks: where the data continues after a resume
        self._backend = backend
        self._loss, self._tokens, self._scheduler = loss, tokens, scheduler
        self._share: float | None = None  # the current micro-batch's weight in the loss of its rank
        self._is_last = False
        self._is_fused = False  # the current micro-batch's loss
        self._loss_sum = torch.zeros((), device=device)
        self._pending_samples = 0

    @property
    def model(self) -> nn.Module:
        """The wrapped model, for your own forward passes and for evaluation."""
        return self._backend.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer; call the engine's ``step`` instead of its own."""
        return self._backend.optimizer

    def __call__(self, micro: Any) -> torch.Tensor:
        """Return the mean loss of one micro-batch."""
        self._is_fused = self.settings.plan.fused_loss
        with self.autocast():
            return self._loss(self.model, micro)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Apply the plan's precision and activation offload to your own forward pass and loss."""
        with ExitStack() as stack:
            stack.enter_context(autocast(self.settings.plan, self.device))
            if self.settings.is_probe:  # only probes are compared in it
                stack.enter_context(attention_watched(self.model))
            if self.settings.plan.offload is Offload.ACTIVATIONS:
                stack.enter_context(ActivationOffload())
            yield

    def micro_batches(self, batch: Any) -> Iterator[Any]:
        """Yield the micro-batches of this rank's share of a global batch, on the device.

        All ranks get the same number, because they compute together: a rank with fewer rows gets rows of zero weight. A
        probe's batches are shortened in number and padded to the job's sequence length.
        """
        size = self.settings.plan.micro_batch
        if self.settings.is_probe:
            shortened = batch_rows.rows_between(batch, 0, _PROBE_MICRO_STEPS * size)
            batch = padded(shortened, self.settings.sequence_length)
        rows = batch_rows.rows_of(batch)
        micros = [batch_rows.rows_between(batch, first, first + size) for first in range(0, rows, size)]
        tokens = [self._tokens(micro) for micro in micros]
        everything = self._gather(rows, len(micros), sum(tokens))
        self._pending_samples, count = int(everything[:, 0].sum()), int(everything[:, 1].max())
        total = int(everything[:, 2].sum())
        if not total:
            raise ValueError("this batch has no tokens to learn from on any rank; leave it out")
        filler = batch_rows.filler_row(batch)
        for number in range(count):
            is_filler = number >= len(micros)
            # The factor undoes the backends' averaging over ranks.
            self._share = 0.0 if is_filler else len(everything) * tokens[number] / total
            self._is_last = number == count - 1
            self._backend.begin(self._is_last)
            self._is_fused = False
            yield batch_rows.to_device(filler if is_filler else micros[number], self.device)
            if self._share is not None:
                raise RuntimeError("engine.backward(loss) must be called once for every micro-batch")

    def _gather(self, *numbers: int) -> torch.Tensor:
        """Gather these numbers from all ranks, one row per rank."""
        own = torch.tensor([numbers], device=self.device)
        every = [torch.empty_like(own) for _ in range(self.settings.world)]
        distributed.all_gather(every, own)
        return torch.cat(every)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of the current micro-batch, given the mean loss over its tokens."""
        if self._share is None:
            raise RuntimeError("engine.backward(loss) belongs in a loop over engine.micro_batches(batch), once a turn")
        # The mean over no tokens is NaN, under any weight.
        weighted = (loss if self._share else loss.nan_to_num(0.0, 0.0, 0.0)) * self._share
        self._loss_sum += weighted.detach()
        self._share = None
        applied_knobs.saw_loss(fused=self._is_fused)
        self._backend.backward(weighted)

    def step(self) -> Step:
        """Clip, make an optimizer step and a scheduler step; call it after all micro-batches of a batch."""
        if not self._is_last or self._share is not None:
            raise RuntimeError("engine.step() belongs after the loop over engine.micro_batches(batch), which must end")
        updated = self._backend.step()
        if self._scheduler is not None and not updated.skipped:
            self._scheduler.step()
        distributed.all_reduce(self._loss_sum)
        loss = self._loss_sum / self.settings.world
        self._loss_sum = torch.zeros_like(self._loss_sum)
        self._is_last = False
        self.steps += 1
        self.skipped_steps += updated.skipped
        self.samples += self._pending_samples
        return Step(loss, updated.gradient_norm, updated.skipped)

    def save(self, directory: str | Path | None = None) -> Path:
        """Save everything that training resumes from, in the format of the plan's library. All ranks call it.

        Without a directory, it creates one in the job's ``checkpoint.path``, where the newest are kept. A directory
        that you pass must lie below that path for a relaunch to find it, and its old content is lost during the save.
        """
        checkpoint_format = engine_format(self.settings.plan)
        with phases.during(Phase.SAVE):  # gathering the states takes time and memory, too
            if directory is None:
                return saving.save(self.settings, self._write, Trained(self.steps, self.samples), checkpoint_format)
            directory = Path(directory)
            saving.begin(directory)
            self._write(directory)
            saving.complete(self.settings, directory, Trained(self.steps, self.samples), checkpoint_format)
            return directory

    def _write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._backend.save(directory)
        if distributed.get_rank() == 0:
            torch.save(self._state(), directory / _STATE_FILE)
        distributed.barrier()

    def load(self, directory: str | Path) -> None:
        """Resume from what ``save`` wrote. All ranks call it."""
        directory = Path(directory)
        self._backend.load(directory)
        # A scheduler's state may hold arbitrary objects, such as numpy numbers.
        state = torch.load(directory / _STATE_FILE, weights_only=False)
        self.steps, self.samples, self.skipped_steps = state["steps"], state["samples"], state["skipped_steps"]
        if self._scheduler is not None and state["scheduler"] is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        if self._backend.scaler is not None and state["scaler"] is not None:
            self._backend.scaler.load_state_dict(state["scaler"])

    def _state(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "samples": self.samples,
            "skipped_steps": self.skipped_steps,
            "scheduler": self._scheduler.state_dict() if self._scheduler else None,
            "scaler": self._backend.scaler.state_dict() if self._backend.scaler else None,
        }
