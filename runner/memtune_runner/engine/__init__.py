"""``initialize``: applies the run's plan to a user's model, in three lines of the script."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from memtune.plans import knobs
from memtune.plans.plan import Plan
from memtune_runner.engine import activation_checkpointing, batch_rows, optimizers, precision
from memtune_runner.engine.engine import CountTokens, Engine, Loss, Step
from memtune_runner.engine.process_group import connect
from memtune_runner.engine.protocol import Backend, Setup
from memtune_runner.rank.plan_refusals import PlanError, refuse
from memtune_runner.rank.settings import Settings, read_settings

__all__ = ["Engine", "PlanError", "Step", "initialize"]

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], LRScheduler]


def initialize(
    model: nn.Module,
    *,
    loss: Loss | None = None,
    fused_loss: Loss | None = None,
    optimizer: OptimizerFactory | None = None,
    scheduler: SchedulerFactory | None = None,
    lr: float = 1e-4,
    max_grad_norm: float | None = 1.0,
    tokens: CountTokens | None = None,
    settings: Settings | None = None,
) -> Engine:
    """Prepare a model for training under the plan of this run.

    ``loss(model, micro)`` returns the mean loss of a micro-batch; without it the model is called with the micro-batch's
    entries and must return an output with a ``loss``, as Hugging Face models do. ``fused_loss(model, micro)`` returns
    the same without keeping the logits, for plans that ask for it. ``tokens(micro)`` returns the number of elements in
    that mean, if it cannot be derived from labels. ``optimizer(parameters)`` replaces the plan's optimizer;
    ``scheduler(optimizer)`` is stepped once per optimizer step. ``settings`` are read from the environment.
    """
    settings = settings or read_settings(os.environ)
    plan = settings.plan
    refuse(plan, settings.device)
    device = connect(settings)
    loss = _fused(fused_loss, plan) if plan.fused_loss else loss
    tokens = tokens or partial(batch_rows.count_tokens, shifts_labels=loss is None and _shifts_labels(model))
    precision.prepare(model, plan, device)
    activation_checkpointing.apply(model, plan.checkpointing)
    setup = Setup(settings, device, partial(_make_optimizer, settings, optimizer, lr), max_grad_norm)
    backend = backend_of(model, setup)
    schedule = scheduler(backend.optimizer) if scheduler else None
    return Engine(backend, settings, device, loss or _loss_of_model, tokens, schedule)


def backend_of(model: nn.Module, setup: Setup) -> Backend:
    """Return the plan's backend. Backends are imported lazily, because their library may be missing."""
    match setup.settings.plan.sharding.backend:
        case "ddp":
            from memtune_runner.engine.ddp import DdpBackend

            return DdpBackend(model, setup)
        case "fsdp":
            from memtune_runner.engine.fsdp import FsdpBackend

            return FsdpBackend(model, setup)
        case _:
            from memtune_runner.engine.deepspeed import DeepSpeedBackend

            return DeepSpeedBackend(model, setup)


def _make_optimizer(
    settings: Settings, factory: OptimizerFactory | None, lr: float, model: nn.Module
) -> torch.optim.Optimizer:
    if factory is None:
        return optimizers.build(settings.plan, model, lr)
    if settings.plan.optimizer is knobs.Optimizer.ADAMW_8BIT:
        raise PlanError(
            f"plan {settings.plan}: the plan replaces the optimizer by adamw-8bit, but the script makes its own; "
            "leave out optimizer=, or name 8-bit AdamW in none of training.optimizer, tuning.space.optimizer and "
            "retry.consent"
        )
    return factory(optimizers.trainable(model))


def _fused(loss: Loss | None, plan: Plan) -> Loss:
    if loss is None:
        raise PlanError(
            f"plan {plan}: the plan fuses the loss with the model's head, and the script has no such loss; "
            "give fused_loss=, or take true out of tuning.space.fusedLoss (in mode Fixed, fl out of tuning.plan)"
        )
    return loss


def _shifts_labels(model: nn.Module) -> bool:
    """Whether a Hugging Face model predicts the next token and therefore shifts the labels itself."""
    return getattr(model, "loss_type", None) == "ForCausalLM"


def _loss_of_model(model: nn.Module, micro: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**micro).loss
    return loss
