"""The DeepSpeed backend: ZeRO 0 to 3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from memtune_runner.checkpoints import universal
from memtune_runner.engine.loss_scale import INITIAL_POWER
from memtune_runner.engine.precision import CastInputs, compute_dtype
from memtune_runner.engine.protocol import Setup, Updated
from memtune_runner.rank import deepspeed_on_cpu
from memtune_runner.rank.deepspeed_file import config_of
from memtune_runner.rank.plan_refusals import PlanError
from memtune_runner.rank.settings import Settings

_TAG = "deepspeed"
_NEVER = 1 << 60


class DeepSpeedBackend:
    """A DeepSpeed engine that leaves accumulation and loss weighting to MemTune's engine."""

    scaler = None  # DeepSpeed saves its own loss scale

    def __init__(self, model: nn.Module, setup: Setup) -> None:
        dtype = compute_dtype(setup.settings.plan)
        deepspeed = _import(setup)
        self.optimizer = setup.make_optimizer(model)
        model.register_forward_pre_hook(CastInputs(dtype), with_kwargs=True)
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=self.optimizer,
            config=_config(setup.settings) | {"gradient_clipping": setup.max_grad_norm or 0.0},
            dist_init_required=False,
        )
        self.model: nn.Module = self._engine
        if not setup.settings.plan.sharding.zero_stage:
            # FP16_UnfusedOptimizer creates the states in a step without gradients, which Adam would count as its first.
            self.optimizer.state.clear()

    def begin(self, is_last: bool) -> None:
        """Tell DeepSpeed where an optimizer step ends; its own count does not allow for short batches."""
        self._engine.set_gradient_accumulation_boundary(is_last)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the micro-batch's gradients; DeepSpeed's own scaling would divide them by its count of micro-batches."""
        self._engine.backward(loss, scale_wrt_gas=False)
        if not self._engine.is_gradient_accumulation_boundary():
            self._engine.step()  # counts the micro-batch without an update

    def step(self) -> Updated:
        """Let DeepSpeed clip, step and clear the gradients."""
        skipped = self._engine.skipped_steps
        norm = self._plain_norm()
        self._engine.step()
        if norm is None:
            norm = self._engine.get_global_grad_norm()
        return Updated(None if norm is None else float(norm), self._engine.skipped_steps > skipped)

    def _plain_norm(self) -> torch.Tensor | None:
        """Return the gradient's norm at stage 0 in fp32, where DeepSpeed wraps no optimizer and keeps no norm."""
        if self._engine.optimizer is not self.optimizer:
            return None
        return get_total_norm([each.grad for each in self.model.parameters() if each.grad is not None])

    def save(self, directory: Path) -> None:
        """Write DeepSpeed's own checkpoint."""
        self._engine.save_checkpoint(str(directory), tag=_TAG)

    def load(self, directory: Path) -> None:
        """Read the checkpoint on as many ranks as wrote it, or its universal form on any number."""
        path, _ = self._engine.load_checkpoint(str(directory), tag=_TAG)
        if path is None:
            raise FileNotFoundError(f"{directory} holds no DeepSpeed checkpoint named {_TAG}")


def _config(settings: Settings) -> dict[str, Any]:
    """Return the configuration file of the run, which has the machine's paths, or else the plan's configuration."""
    if settings.deepspeed_config is not None:
        config: dict[str, Any] = json.loads(settings.deepspeed_config.read_text())
    else:
        config = config_of(settings, settings.plan)
    if config.get("fp16", {}).get("enabled"):
        config["fp16"] = {"initial_scale_power": INITIAL_POWER} | config["fp16"]
    return config | {"steps_per_print": _NEVER}


def _import(setup: Setup) -> Any:
    on_cpu = setup.device.type == "cpu"
    if on_cpu:
        deepspeed_on_cpu.choose_cpu()
    try:
        import deepspeed  # type: ignore[import-untyped]  # DeepSpeed ships no types
    except ImportError:
        raise PlanError(f"plan {setup.settings.plan}: DeepSpeed is not installed; add it to the image") from None
    universal.detect_universal_checkpoints(deepspeed.DeepSpeedEngine)
    if on_cpu:
        deepspeed_on_cpu.adapt(deepspeed)
    return deepspeed
