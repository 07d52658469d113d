"""What the driver counts and the caching allocator does not: the CUDA context and NCCL's buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from memtune.memory.constants import DEFAULT_CONSTANTS, Constants
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.terms import ALWAYS, Term

OUTSIDE = frozenset({"context", "nccl"})
# By how much jobs of one image, GPU and world differ even where they came out alike: other models load other kernels,
# other plans make other communicators. Chosen, not fitted: no published run tells it.
_BETWEEN_JOBS = 0.2
# What is so far from the constants is another process's memory, or no measurement at all.
_CREDIBLE = 4.0


def outside_terms(recipe: Recipe, constants: Constants) -> list[Term]:
    """The addends outside the allocator. A virtual GPU has no driver that would take any."""
    if recipe.virtual:
        return []
    # Once it was measured for this image and GPU, the context is known.
    context = recipe.context_bytes or constants.context_bytes
    terms = [Term("context", context, ALWAYS, "{:,.0f} B of CUDA context and kernels", (context,), "pytorch#86509")]
    if recipe.world > 1:
        size = outside_sizes(recipe.world, constants)["nccl"]
        template = "{:,.0f} B + {:,.0f} B x log2({}) ranks of NCCL buffers"
        values = (constants.nccl_bytes, constants.nccl_bytes_per_doubling, recipe.world)
        terms.append(Term("nccl", size, ALWAYS, template, values, "nccl#964, nccl#864"))
    return terms


def outside_sizes(world: int, constants: Constants = DEFAULT_CONSTANTS) -> dict[str, float]:
    """What the constants say of each part on one of so many GPUs."""
    if world == 1:
        return {"context": constants.context_bytes}
    nccl = constants.nccl_bytes + constants.nccl_bytes_per_doubling * math.log2(world)
    return {"context": constants.context_bytes, "nccl": nccl}


def is_credible(outside_bytes: int, world: int) -> bool:
    """Whether so much may be a context and its communicators."""
    constant = sum(outside_sizes(world).values())
    return constant / _CREDIBLE <= outside_bytes <= constant * _CREDIBLE


def experienced(sizes: Sequence[int], world: int) -> tuple[float, float]:
    """What one more job is expected to have outside after these, and the half-width of that.

    It never leaves out what a job had, and as long as few tell, not what the constants say either.
    """
    middle = median(sizes)
    spread = max(abs(size - middle) for size in sizes)
    doubt = abs(middle - sum(outside_sizes(world).values())) / len(sizes)
    return middle, max(_BETWEEN_JOBS * middle, spread, doubt)
