"""Sets a plan's activation checkpointing in a model that a library trains."""

from __future__ import annotations

from typing import Any

from memtune.plan import Plan


def set_checkpointing(model: Any, plan: Plan) -> None:
    """Checkpoint the model's blocks as the plan says, whatever the script or the library had in mind."""
    from memtune_runner import checkpointing

    blocks = checkpointing.apply(model, plan.checkpointing)
    if blocks and hasattr(model, "config") and hasattr(model.config, "use_cache"):
        # A block that is run again would put its keys and values into the cache a second time.
        model.config.use_cache = False
