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


def largest_tensors(shape: Shape, recipe: Recipe) -> tuple[float, float]:
    """The bytes of the largest tensor that every micro-batch has, and of the largest that each sample adds to."""
    # FSDP gathers unit by unit. DDP's buckets and DeepSpeed's flat tensors hold many parameters each.
    unit, gradients = max(shape.root, shape.layer), shape.trainable
    still = recipe.compute_bytes * unit if recipe.backend == "fsdp" else recipe.gradient_bytes * gradients
    scores = shape.heads * recipe.sequence_length if recipe.attention is Attention.EAGER else 0
    moving = max(recipe.compute_bytes * max(shape.ffn, shape.hidden, scores), 4 * shape.vocab)
    return still, moving * recipe.tokens / recipe.micro_batch


def unused_bytes(largest_tensor: float, constants: Constants) -> float:
    """What is unused of one segment of each pool that is in use."""
    large = _LARGE_SEGMENT if largest_tensor > _SMALL_REQUEST else 0
    return constants.unused_share * (_SMALL_SEGMENT + large)
