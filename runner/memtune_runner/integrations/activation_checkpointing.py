"""Applies a plan's activation checkpointing to a model that the Trainer, accelerate or Lightning trains."""

from __future__ import annotations

from typing import Any

from memtune.plans.plan import Plan


def set_checkpointing(model: Any, plan: Plan) -> None:
    """Checkpoint the model's blocks as the plan says, whatever the script or the library set."""
    from memtune_runner.engine import activation_checkpointing

    for each in model.modules():  # a library's model may be a part of the script's
        activation_checkpointing.switch_off_own(each)
    activation_checkpointing.apply(model, plan.checkpointing)
