"""What the driver counts and the caching allocator does not: the CUDA context and NCCL's buffers."""

from __future__ import annotations

import math

from memtune.predict.constants import Constants
from memtune.predict.recipe import Recipe
from memtune.predict.terms import ALWAYS, Term

OUTSIDE = frozenset({"context", "nccl"})


def outside_terms(recipe: Recipe, constants: Constants) -> list[Term]:
    """The addends outside the allocator. A virtual GPU has no driver that would take any."""
    if recipe.virtual:
        return []
    # Once it was measured for this image and GPU, the context is known.
    context = recipe.context_bytes or constants.context_bytes
    terms = [Term("context", context, ALWAYS, "{:,.0f} B of CUDA context and kernels", (context,), "pytorch#86509")]
    if recipe.world > 1:
        doublings = math.log2(recipe.world)
        size = constants.nccl_bytes + constants.nccl_bytes_per_doubling * doublings
        template = "{:,.0f} B + {:,.0f} B x log2({}) ranks of NCCL buffers"
        values = (constants.nccl_bytes, constants.nccl_bytes_per_doubling, recipe.world)
        terms.append(Term("nccl", size, ALWAYS, template, values, "nccl#964, nccl#864"))
    return terms
