"""The least that the allocator's pools hold beyond the tensors in them: of a run of megabytes it may be most.

Source: c10/cuda/CUDACachingAllocator.cpp. Requests of up to 1 MiB come from segments of 2 MiB, larger ones from
segments of 20 MiB, and the last segment of a pool is not full.
"""

from __future__ import annotations

from memtune.knobs import Attention
from memtune.predict.constants import Constants
from memtune.predict.recipe import Recipe
from memtune.predict.shape import Shape
from memtune.units import MIB

# kSmallSize, kSmallBuffer and kLargeBuffer.
_SMALL_REQUEST, _SMALL_SEGMENT, _LARGE_SEGMENT = MIB, 2 * MIB, 20 * MIB
# What one tensor more opens in each pool: a script has some that no description and no trace of its model tells of.
ONE_MORE_EACH = _SMALL_SEGMENT + _LARGE_SEGMENT


def largest_tensors(shape: Shape, recipe: Recipe) -> tuple[float, float]:
    """The bytes of the largest tensor that every micro-batch has, and of the largest that each sample adds to."""
    still: float
    if recipe.backend == "fsdp":
        still = recipe.compute_bytes * max(shape.root, shape.layer)  # it gathers unit by unit
    elif recipe.backend == "ddp" and recipe.bucket_view:
        # Without DDP's buckets, which hold many gradients each as DeepSpeed's flat tensors do, each is by itself.
        still = recipe.gradient_bytes * min(max(shape.vocab * shape.hidden, shape.largest_linear), shape.trainable)
    else:
        still = recipe.gradient_bytes * shape.trainable
    scores = shape.heads * recipe.sequence_length if recipe.attention is Attention.EAGER else 0
    moving = max(recipe.compute_bytes * max(shape.ffn, shape.hidden, scores), 4 * shape.vocab)
    return still, moving * recipe.tokens / recipe.micro_batch


def whole_segments(largest_tensor: float) -> int:
    """A segment of each pool that is in use, which is there however little is in it."""
    return _SMALL_SEGMENT + (_LARGE_SEGMENT if largest_tensor > _SMALL_REQUEST else 0)


def unused_bytes(largest_tensor: float, constants: Constants) -> float:
    """What is unused of one segment of each pool that is in use."""
    return constants.unused_share * whole_segments(largest_tensor)
