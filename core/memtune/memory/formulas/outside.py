"""Driver overhead outside the caching allocator: the CUDA context and NCCL's buffers."""

from __future__ import annotations

from memtune.gpus.driver_overhead import CONTEXT_BYTES, NCCL_BYTES, NCCL_BYTES_PER_DOUBLING, outside_sizes
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.terms import ALWAYS, Term

OUTSIDE = frozenset({"context", "nccl"})


def outside_terms(recipe: Recipe) -> list[Term]:
    """The terms outside the allocator. A virtual GPU has no driver and no overhead."""
    if recipe.virtual:
        return []
    # A context measured for this image and GPU overrides the constant.
    context = recipe.context_bytes or CONTEXT_BYTES
    terms = [Term("context", context, ALWAYS, "{:,.0f} B of CUDA context and kernels", (context,), "pytorch#86509")]
    if recipe.world > 1:
        size = outside_sizes(recipe.world)["nccl"]
        template = "{:,.0f} B + {:,.0f} B x log2({}) ranks of NCCL buffers"
        values = (NCCL_BYTES, NCCL_BYTES_PER_DOUBLING, recipe.world)
        terms.append(Term("nccl", size, ALWAYS, template, values, "nccl#964, nccl#864"))
    return terms
