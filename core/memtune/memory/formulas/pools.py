"""What the caching allocator reserves beyond the tensors that live at the peak.

Source: c10/cuda/CUDACachingAllocator.cpp. Requests of up to 1 MiB come from segments of 2 MiB, larger ones from
segments of 20 MiB, and the last segment of a pool is not full: of a run of megabytes, that may be most.

In a run of gigabytes it is blocks that other phases left. A step begins with the largest blocks of all, those of the
loss. When they are free, gradients, moments, gathered units and copies for the reduction are cut from them. Some of
these stay, and the next step asks the device for its largest blocks once more. So it grows with what lives in other
phases than the one that peaks, most where units of many sizes come and go.
"""

from __future__ import annotations

from typing import NamedTuple

from memtune.memory.constants import Constants
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.shape import Shape
from memtune.plans.knobs import Attention
from memtune.units import MIB

# kSmallSize, kSmallBuffer and kLargeBuffer.
_SMALL_REQUEST, _SMALL_SEGMENT, _LARGE_SEGMENT = MIB, 2 * MIB, 20 * MIB
# Expandable segments map whole pages: PyTorch, docs/source/notes/cuda.rst.
_PAGES = 0.02
# A replay places every tensor of the model, but not those of the libraries' own that it does not know.
_REPLAY_DOUBT = 0.6
# What one tensor more opens in each pool: a script has some that no description and no trace of its model tells of.
ONE_MORE_EACH = _SMALL_SEGMENT + _LARGE_SEGMENT


class Packing(NamedTuple):
    """What is reserved beyond what is allocated: a ``share`` of that, ``unfit`` of what other phases have more, and
    ``loss`` of the logits with all that the loss makes of them.

    ``doubt`` is the half-width of the 97.5% interval of all three together, relative to them.
    """

    share: float
    unfit: float
    loss: float
    doubt: float

    def times(self, ratio: float) -> Packing:
        """The same where everything reserved is so many times as much. No setting packs tighter than whole pages."""
        return Packing(max((1 + self.share) * ratio - 1, _PAGES), self.unfit * ratio, self.loss * ratio, self.doubt)


# Fitted on emulated runs alone (docs/accuracy.md, Intervals). Adapters
# have few states, which would fill what the loss has left; what a script holds of the last output is then in the way.
PACKINGS = {
    "whole": Packing(0.06, 0.17, 0.0, 1.2),
    "adapter": Packing(0.06, 0.17, 0.3, 0.8),
    "partitioned": Packing(0.18, 0.0, 0.0, 0.6),
    "sharded": Packing(0.08, 0.64, 0.0, 0.55),
    "expandable, whole": Packing(0.03, 0.0, 0.0, 2.0),
    "expandable, partitioned": Packing(0.02, 0.0, 0.0, 1.0),
    "expandable, sharded": Packing(0.05, 0.37, 0.0, 0.65),
}


def packing_class(shape: Shape, recipe: Recipe) -> str:
    """How the allocator packs a recipe's tensors: by who gathers weights or reduces gradients into a partition."""
    kind = "adapter" if shape.has_adapter and not recipe.expandable_segments else "whole"
    if recipe.backend == "fsdp" or recipe.is_stage_3 or recipe.weight_shards > 1:
        kind = "sharded"
    elif recipe.gradient_shards > 1:
        kind = "partitioned"
    return f"expandable, {kind}" if recipe.expandable_segments else kind


def replayed(ratio: float) -> Packing:
    """What a replay of every tensor says: reserved over allocated bytes."""
    return Packing(max(ratio - 1, _PAGES), 0.0, 0.0, _REPLAY_DOUBT)


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
    decoder = recipe.decoder
    longest = max(recipe, decoder, key=lambda stack: stack.sequence_length)
    scores = shape.heads * longest.sequence_length if recipe.attention is Attention.EAGER else 0
    inside = recipe.compute_bytes * max(shape.ffn, shape.hidden, scores) * longest.tokens
    return still, max(inside, 4 * shape.vocab * decoder.tokens) / recipe.micro_batch


def whole_segments(largest_tensor: float) -> int:
    """A segment of each pool that is in use, which is there however little is in it."""
    return _SMALL_SEGMENT + (_LARGE_SEGMENT if largest_tensor > _SMALL_REQUEST else 0)


def unused_bytes(largest_tensor: float, constants: Constants) -> float:
    """What is unused of one segment of each pool that is in use."""
    return constants.unused_share * whole_segments(largest_tensor)
