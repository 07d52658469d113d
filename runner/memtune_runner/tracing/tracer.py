"""Records micro-batches of one model, running only part of a long row of identical blocks where that is valid."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import nn

from memtune_runner.engine.precision import CastInputs
from memtune_runner.tracing.adaptations import replaced, usual_paths
from memtune_runner.tracing.casts import gpu_casts
from memtune_runner.tracing.factory import Subject
from memtune_runner.tracing.folding import folded, folds_of
from memtune_runner.tracing.kernels import gpu_kernels
from memtune_runner.tracing.model_hooks import Numbers
from memtune_runner.tracing.recorder import Recorder
from memtune_runner.tracing.recording import Recording
from memtune_runner.tracing.sharded_weights import sharded_weights
from memtune_runner.tracing.shared_status import ignore_place
from memtune_runner.tracing.trace_errors import TracingError, explained
from memtune_runner.tracing.unfolding import IrregularError, unfold


class Tracer:
    """Records one model.

    The first micro-batch runs all blocks, and unfolding the shortened rows must give the same result. If it does not,
    or if rows turn out to be irregular later, everything runs all blocks.
    """

    def __init__(
        self,
        subject: Subject,
        rows: Sequence[list[nn.Module]],
        as_gpu: bool,
        loss_autocast: bool = False,
        set_place: Callable[[str], None] = ignore_place,
    ) -> None:
        self.subject = subject
        self._loss_autocast = loss_autocast
        self.numbers = Numbers(subject.model, rows)
        self.assumed: set[str] = set()
        self._as_gpu = as_gpu
        self._stand_at = set_place
        self._folds = folds_of(subject.model, rows)
        self._is_sure = not self._folds

    def record(self, rows: int, numerics: str) -> Recording:
        """Return the recording of a micro-batch of ``rows`` rows."""
        if not self._is_sure:
            return self._compared(rows, numerics)
        return self._folded(rows, numerics) or self._run(rows, numerics)

    def _compared(self, rows: int, numerics: str) -> Recording:
        self._is_sure = True
        self._folded(rows, numerics)  # fills the model's caches
        whole = self._run(rows, numerics)
        if self._folded(rows, numerics) != whole:
            self._folds = []
        return whole

    def _folded(self, rows: int, numerics: str) -> Recording | None:
        """Return the recording of all blocks from a run of some; None if they are not identical."""
        try:
            with folded(self._folds):
                recording = self._run(rows, numerics)
            for fold in self._folds:
                recording = unfold(recording, fold, self.numbers)
        except (IrregularError, TracingError):
            # If the shortened rows are not the cause, running all blocks will tell.
            self._folds = []
            return None
        return recording

    def _run(self, rows: int, numerics: str) -> Recording:
        gc.collect()
        model = self.subject.model
        recorder = Recorder(self.numbers, self._as_gpu, self._stand_at)
        with ExitStack() as stack:
            stack.enter_context(recorder.watching(model))
            if self._as_gpu:
                stack.enter_context(gpu_kernels(recorder.attending))
                stack.enter_context(gpu_casts())
            stack.enter_context(usual_paths(self.assumed))
            if numerics == "half":
                # DeepSpeed's engine and FSDP do the same.
                hook = model.register_forward_pre_hook(CastInputs(torch.bfloat16), with_kwargs=True)
                stack.callback(hook.remove)
                # Autocast is off within the model and on only around it.
                stack.enter_context(replaced(model, "forward", torch.autocast("cpu", enabled=False)(model.forward)))
            if numerics != "autocast":  # DeepSpeed leaves it to others
                stack.enter_context(sharded_weights(model, recorder, self.numbers.weights))
            stack.enter_context(recorder)
            try:
                casts = numerics == "autocast" or (numerics == "half" and self._loss_autocast)
                _micro_batch(self.subject, rows, casts, recorder)
            except TracingError:
                raise
            except BaseException as error:
                raise explained(error, recorder.module_name, str(recorder.operator)) from error
            gc.collect()
            return recorder.recording()


def _micro_batch(subject: Subject, rows: int, casts: bool, recorder: Recorder) -> None:
    batch = subject.batch(rows)
    with torch.autocast("cpu", torch.bfloat16, enabled=casts):
        loss = subject.loss(subject.model, batch)
    if not loss.requires_grad:
        raise TracingError(
            f"the loss of {type(subject.model).__name__} has no gradient: it depends on no weight that is trained, or "
            "gradients are switched off; let the model have weights with requires_grad, and leave gradients on"
        )
    recorder.begin_backward()
    loss.backward()
    del loss, batch
    subject.model.zero_grad()
