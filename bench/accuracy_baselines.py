"""What one could pick up today instead: three published rules, applied to the same rows."""

from __future__ import annotations

from accuracy_rows import Row


def accelerate(row: Row) -> float:
    """`accelerate estimate-memory`: training with Adam takes four times the model in its dtype.

    huggingface/accelerate, src/accelerate/commands/estimate.py and docs/source/usage_guides/model_size_estimator.md.
    """
    return 4 * row.published_parameters * max(row.recipe.frozen_bytes, row.recipe.base_bytes)


def deepspeed(row: Row) -> float:
    """DeepSpeed's estimate_zero2_ and estimate_zero3_model_states_mem_needs, the latter from stage 3 on.

    deepspeedai/DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py and stage3.py; offload as the row has it.
    """
    parameters, shards = row.published_parameters, row.recipe.state_shards
    offload, sharded = row.recipe.offloads_states, row.recipe.weight_shards > 1
    if not sharded:
        return 2 * parameters + (0 if offload else 18 * parameters / shards)
    largest = 4 * max(row.shape.layer, row.shape.vocab * row.shape.hidden)
    return largest + (2 if offload else 18) * parameters / shards


def tutorial(row: Row) -> float:
    """16 bytes a parameter, sharded, and 12 x micro-batch x sequence x hidden a layer (2 bytes with checkpointing)."""
    recipe, shape = row.recipe, row.shape
    states = 16 * shape.trainable / recipe.state_shards
    if shape.has_adapter:
        states += recipe.frozen_bytes * shape.total / recipe.weight_shards
    each = 2 if recipe.checkpointing.mode == "full" else 12
    return states + each * recipe.tokens * shape.hidden * shape.layers


BASELINES = {"accelerate": accelerate, "deepspeed": deepspeed, "tutorial": tutorial}
