"""Temporaries of the optimizer step.

Sources: DeepSpeed runtime/zero/stage3.py and stage_1_and_2.py; `optimizer_bytes` names those of optimizers.
"""

from __future__ import annotations

from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.shape import Shape
from memtune.memory.formulas.terms import STEPPING, Term
from memtune.plans.deepspeed_config import SUB_GROUP_ELEMENTS


def step_transients(shape: Shape, recipe: Recipe) -> list[Term]:
    """Allocations of a step beside weights, gradients and states."""
    trainable = shape.trainable / recipe.tensor_parallel / recipe.pipeline_parallel / recipe.state_shards
    if recipe.offloads_states and recipe.older_deepspeed and recipe.has_bucket and not recipe.is_stage_3:
        template, source = "4 B x {:,.0f} master weights on their way back", "deepspeed#5301"
        return [Term("step transients", 4.0 * trainable, STEPPING, template, (trainable,), source)]
    if recipe.offloads_states or recipe.step_in_backward:
        return []
    if recipe.backend == "deepspeed":
        # The step works directly on flat sums, or on a flat fp32 copy of the gradients, at stage 3 sub-group by
        # sub-group. Bucketed gradients are flattened first, and copied once more if not yet in fp32.
        elements = min(trainable, SUB_GROUP_ELEMENTS) if recipe.is_stage_3 else trainable
        flat = recipe.gradient_bytes if recipe.has_bucket else 0.0
        widened = 4.0 if flat < 4 and recipe.master_bytes else 0.0
        each = 0.0 if recipe.has_flat_sums else flat + widened
        template, source = "{:.4g} B x {:,.0f} gradients, flat and in fp32", "deepspeed stage_1_and_2.py, step"
        return [Term("step transients", each * elements, STEPPING, template, (each, elements), source)]
    outside = shape.outside / recipe.tensor_parallel / recipe.pipeline_parallel / recipe.state_shards
    return _optimizer_temporaries(shape, recipe, trainable, outside)


def _optimizer_temporaries(shape: Shape, recipe: Recipe, trainable: float, outside: float) -> list[Term]:
    terms = []
    if recipe.foreach_bytes:
        # Muon's AdamW steps only parameters outside the blocks.
        stepped = outside if recipe.outside_state_bytes else trainable
        template, values = "{:.4g} B x {:,.0f} parameters of foreach temporaries", (recipe.foreach_bytes, stepped)
        size = recipe.foreach_bytes * stepped
        terms.append(Term("step transients", size, STEPPING, template, values, "torch/optim/adamw.py"))
    if recipe.alone_bytes:
        # A table outside the blocks that another optimizer steps is not counted here.
        table = 0 if recipe.outside_state_bytes else shape.vocab * shape.hidden
        largest = min(max(table, shape.largest_linear) / recipe.state_shards, trainable)
        template = "{:.4g} B x {:,.0f} elements of the largest weight in a step"
        values, size = (recipe.alone_bytes, largest), recipe.alone_bytes * largest
        terms.append(Term("step transients", size, STEPPING, template, values, "memtune.plans.optimizer_bytes"))
    # Two optimizers step one after the other.
    return [max(terms, key=lambda term: term.bytes)] if terms else []
