"""Baselines for the accuracy benchmark: three published rules, applied to the same rows."""

from __future__ import annotations

from accuracy_rows import Row


def _frozen(row: Row) -> float:
    """The frozen base of an adapter, which no rule covers, so it is added to each unchanged."""
    if not row.shape.has_adapter:
        return 0.0
    quantized = row.shape.quantizable if row.shape.quantization != "none" else 0
    return quantized * row.recipe.base_bytes + (row.shape.total - quantized) * row.recipe.frozen_bytes


def accelerate(row: Row) -> float:
    """`accelerate estimate-memory`: training with Adam takes four times the model in its dtype.

    huggingface/accelerate, src/accelerate/commands/estimate.py and docs/source/usage_guides/model_size_estimator.md.
    """
    return _frozen(row) + 4 * row.recipe.weight_bytes * row.shape.trainable


def deepspeed(row: Row) -> float:
    """DeepSpeed's estimate_zero2_ and estimate_zero3_model_states_mem_needs, the latter from stage 3 on.

    deepspeedai/DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py and stage3.py; offload as in the row.
    """
    trainable, shards = row.shape.trainable, row.recipe.state_shards
    offload, frozen = row.recipe.offloads_states, _frozen(row)
    if row.recipe.weight_shards == 1:
        return frozen + 2 * trainable + (0 if offload else 18 * trainable / shards)
    largest = 4 * max(row.shape.layer, row.shape.vocab * row.shape.hidden)
    return largest + (frozen + (2 if offload else 18) * trainable) / shards


def tutorial(row: Row) -> float:
    """16 bytes per parameter, sharded, and 12 x micro-batch x sequence x hidden per layer (2 with checkpointing)."""
    recipe, shape = row.recipe, row.shape
    states = _frozen(row) / recipe.weight_shards + 16 * shape.trainable / recipe.state_shards
    each = 2 if recipe.checkpointing.mode == "full" else 12
    return states + each * recipe.tokens * shape.hidden * shape.layers


BASELINES = {"accelerate": accelerate, "deepspeed": deepspeed, "tutorial": tutorial}
