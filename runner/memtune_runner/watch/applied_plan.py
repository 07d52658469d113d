"""The plan that a process's training applied, as observed: the engine, the dtypes, the batches."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from memtune.wire.report import Applied
from memtune_runner.device.statistics import Statistics
from memtune_runner.rank import applied_knobs, script_warnings
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.batch_counts import BatchCounts
from memtune_runner.watch.engines import (
    DetectedEngine,
    compute_dtype,
    describe,
    fsdp_sharding,
    is_one_fsdp_unit,
    keeps_casts,
    main_dtype,
    optimizer_name,
)


class AppliedPlan:
    """Looks at each thing once, when it can first be seen."""

    def __init__(self, settings: Settings, batch_counts: BatchCounts) -> None:
        self.looks_for_compute_dtype = True
        self._settings = settings
        self._batch_counts = batch_counts
        self._model: weakref.ref[torch.nn.Module] | None = None  # weak, so that the script can delete the model
        self._engine: DetectedEngine | None = None
        self._sharding: str | None = None
        self._compute_dtype: str | None = None
        self._gradient_dtype: str | None = None
        self._optimizer: str | None = None

    @property
    def has_model(self) -> bool:
        """Whether a module was trained; a script may train tensors alone."""
        return self._model is not None

    @property
    def whole_model(self) -> torch.nn.Module | None:
        """The model that was trained last; None if its engine may keep only a part of its weights here."""
        is_whole = self._engine is not None and self._engine.backend not in ("fsdp", "deepspeed")
        return self._model() if self._model is not None and is_whole else None

    def training_began(self, module: torch.nn.Module) -> None:
        """Look at the engine of the model that begins its forward pass."""
        if self._model is None or module is not self._model():
            self._model, self._engine = weakref.ref(module), describe(module)

    def inner_forward_began(self, module: torch.nn.Module) -> None:
        """Look at an inner module; the first matrix product determines the compute dtype."""
        found = compute_dtype(module)
        if found is None:
            return
        self._compute_dtype = found
        self.looks_for_compute_dtype = False
        is_gathered = self._engine is not None and self._engine.backend in ("fsdp", "deepspeed")
        if keeps_casts(module, found) and not is_gathered:
            script_warnings.warn(
                f"the script loads frozen weights in float32, of which autocast keeps copies in {found}: "
                f"load them in {found}",
                once="frozen weights",
            )

    def forward_ended(self) -> None:
        """Look at the sharding, which FSDP sets up in its first forward pass."""
        model = self._model() if self._model is not None else None
        if model is not None and self._engine is not None and self._engine.backend == "fsdp" and not self._sharding:
            self._sharding = fsdp_sharding(model)
            if self._sharding is None and is_one_fsdp_unit(model):
                script_warnings.warn(
                    "the script gives FSDP the model as one unit, so that each forward pass gathers all weights: "
                    "call fully_shard on each block before the model",
                    once="one unit",
                )

    def optimizer_began(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the optimizer, and at the gradients before a step, which may free them."""
        self._optimizer = self._optimizer or optimizer_name(optimizer)
        if self._gradient_dtype is None:
            gradients: Iterable[torch.Tensor | None] = (
                each.grad for group in optimizer.param_groups for each in group["params"]
            )
            self._gradient_dtype = main_dtype(each for each in gradients if each is not None)

    def shown(self, statistics: Statistics | None) -> Applied:
        """Return what was seen so far."""
        engine, batch_counts = self._engine, self._batch_counts
        # Whether there are expandable segments costs more to find out than a reading does.
        is_asked = statistics is not None and self._settings.plan.expandable_segments
        return Applied(
            micro_batch=batch_counts.micro_batch,
            micro_steps=batch_counts.micro_steps,
            samples_per_step=batch_counts.samples_per_step,
            largest_tokens=batch_counts.largest_tokens,
            backend=engine.backend if engine else None,
            zero_stage=engine.zero_stage if engine else None,
            sharding=self._sharding,
            weight_dtype=engine.weight_dtype if engine else None,
            gradient_dtype=(engine.gradient_dtype if engine else None) or self._gradient_dtype,
            compute_dtype=self._compute_dtype,
            # Compiled code calls no hooks, so its checkpointed blocks are unknown.
            checkpointed_blocks=None if engine and engine.is_compiled else batch_counts.checkpointed_blocks,
            evaluation_batch=batch_counts.evaluation_batch,
            expandable_segments=statistics.has_expandable_segments() if statistics and is_asked else None,
            optimizer=self._optimizer,
            attention=applied_knobs.attention(),
            fused_loss=applied_knobs.fused_loss(),
        )
