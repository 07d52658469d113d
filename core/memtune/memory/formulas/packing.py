"""Allocator packing: what the caching allocator reserves beyond the live tensors at the peak.

Source: c10/cuda/CUDACachingAllocator.cpp. Requests of up to 1 MiB come from segments of 2 MiB, larger ones from
segments of 20 MiB, and the last segment of a pool is not full: in a run of megabytes, that may dominate.

In a run of gigabytes, blocks that other phases left dominate. A step begins with the largest blocks of all, those of
the loss. Once freed, gradients, moments, gathered units and copies for the reduction are cut from them. Some of these
stay, and the next step requests its largest blocks from the device again: `Cut` counts them. So reserved bytes grow
with what lives in phases other than the peak, most if units of many sizes come and go. DeepSpeed's stages 1 and 2
flatten the rank's gradients into one tensor for the step (stage_1_and_2.py, flatten_dense_tensors_aligned): no block
that others left is that large, so that most of it comes on top.

Batches of varying lengths make it grow with the logits. For each batch that is longer than any before, the loss
requests new blocks from the device, since those of earlier batches are too short for it. They stay: if lengths of a
half, three quarters and the whole of the longest set a record one after the other, a half and three quarters of the
loss are kept beside the whole. Of n batches that differ at random, 1 + 1/2 + ... + 1/n set one, 5 of 100. Expandable
segments grow instead.
"""

from __future__ import annotations

from collections.abc import Mapping
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
# Log-softmax, its gradient and that of the logits: what an eager loss has at once.
_WIDE_TENSORS = 3
# The share of activations whose blocks gradients and moments are cut from: with it, emulated runs are missed least.
OF_ACTIVATIONS = 0.2
# A replay places every tensor of the model, but not unknown ones of the libraries.
_REPLAY_DOUBT = 0.6
# Segments that one more tensor opens in each pool: a script has some that are in neither description nor trace.
ONE_MORE_EACH = _SMALL_SEGMENT + _LARGE_SEGMENT


class Packing(NamedTuple):
    """Bytes reserved beyond the allocated: the ``share`` of those, ``unfit`` of the bytes that other phases have more,
    and others.

    ``loss`` is a share of the logits and all that the loss computes from them, ``flat`` one of the step's temporaries,
    ``anew`` one of the bytes of `Cut` above the peak. ``doubt`` is the relative half-width of the 95% bound of all of
    them together.
    """

    share: float
    unfit: float
    loss: float
    flat: float
    anew: float
    doubt: float

    def times(self, ratio: float) -> Packing:
        """Scale all reserved bytes by a ratio. No setting packs tighter than whole pages."""
        share = max((1 + self.share) * ratio - 1, _PAGES)
        return self._scaled(ratio)._replace(share=share)

    def part(self, kept: float, doubt: float) -> Packing:
        """A part of the kept memory, with its own uncertainty."""
        return self._scaled(kept)._replace(share=max(self.share * kept, _PAGES), doubt=doubt)

    def _scaled(self, by: float) -> Packing:
        unfit, loss, flat, anew = (part * by for part in self[1:5])
        return self._replace(unfit=unfit, loss=loss, flat=flat, anew=anew)


class LossBlocks(NamedTuple):
    """Bytes per sample: a wide tensor of the loss, logits that are free before it peaks, the widest one of a layer."""

    wide: float = 0.0
    idle: float = 0.0
    inside: float = 0.0


class Cut(NamedTuple):
    """Memory that the loss requests from the device again, because the first step cut tensors that stay from its
    blocks.

    Sizes are fixed bytes and those per sample. ``first`` is reserved at the loss of the first step, but for logits that
    the loss has widened, ``steps`` live as the first step and as later ones end. Gradients and moments are cut from
    free blocks, the smallest first: from those of a recomputed layer and of activations, from logits that the loss has
    widened, and then what is ``spilt`` from the ``loss`` with its wide tensors. The backward pass takes its
    ``workspace`` of cuBLAS from a wide one, too, if neither a tensor inside a layer nor a segment of small tensors has
    room for it.
    """

    first: tuple[float, float]
    steps: tuple[tuple[float, float], ...]
    spilt: tuple[float, float]
    loss: tuple[float, float]
    workspace: float
    blocks: LossBlocks

    def peak(self, micro_batch: int) -> float:
        """Bytes reserved in the second step, if only the loss's wide tensors find no room in what the first one left.

        On average, the last block that was cut is cut in its middle.
        """
        wide, idle, inside = self.blocks
        spilt = self.spilt[0] + (self.spilt[1] - idle) * micro_batch
        wide *= micro_batch
        anew = (
            min(spilt + wide / 2, self.loss[0] + self.loss[1] * micro_batch, _WIDE_TENSORS * wide) if spilt > 0 else 0.0
        )
        if max(inside * micro_batch, _LARGE_SEGMENT) < self.workspace:
            anew = max(anew, wide)
        first = self.first[0] + (self.first[1] + idle) * micro_batch
        return max(first, *(fixed + slope * micro_batch for fixed, slope in self.steps)) + anew


# Fitted on emulated runs alone: written by `python bench/packing.py --write`, never by hand.
PACKINGS: Mapping[str, Packing] = {
    "whole": Packing(0.07, 0.00, 0.00, 0.00, 0.17, 1.04),
    "alone": Packing(0.07, 0.00, 0.00, 0.00, 0.89, 0.40),
    "adapter": Packing(0.02, 0.00, 0.00, 0.00, 0.84, 0.39),
    "flattened": Packing(0.03, 0.27, 0.00, 0.70, 0.00, 0.78),
    "sharded": Packing(0.08, 0.71, 0.00, 0.00, 0.15, 0.65),
    "varying, whole": Packing(0.07, 0.00, 2.81, 0.00, 0.17, 2.67),
    "varying, adapter": Packing(0.02, 0.00, 2.65, 0.00, 0.84, 0.69),
    "varying, flattened": Packing(0.03, 0.27, 3.17, 0.70, 0.00, 2.39),
    "varying, sharded": Packing(0.08, 0.71, 3.51, 0.00, 0.15, 0.49),
    "expandable, whole": Packing(0.02, 0.10, 0.00, 0.00, 0.00, 1.97),
    "expandable, flattened": Packing(0.02, 0.00, 0.00, 0.00, 0.00, 5.27),
    "expandable, sharded": Packing(0.07, 0.37, 0.00, 0.00, 0.00, 0.84),
}

# The same for memory that the allocator cannot return: segments with live tensors, or the pages of expandable ones.
# Where blocks of the loss are cut for states and gradients, that is all; units that come and go leave some segments
# empty, and flat gradients the segment of their own. From emulated GPUs that were shrunk until a run was out of memory
# (bench/results/emulated-needed.md), rounded upwards. At most a tenth of the memory of shorter batches stays
# (bench/results/emulated-lengths.md).
_KEPT_OF_CACHE = 0.6
_KEPT_OF_SHORTER = 0.1
_NEEDS_OF_FIXED_LENGTHS: Mapping[str, Packing] = {
    "whole": PACKINGS["whole"],
    "alone": PACKINGS["alone"],
    "adapter": PACKINGS["adapter"].part(_KEPT_OF_CACHE, doubt=1.0),
    "flattened": PACKINGS["flattened"]._replace(flat=0.0, doubt=1.0),
    "sharded": PACKINGS["sharded"].part(_KEPT_OF_CACHE, doubt=1.0),
}


def _of_varying(kind: str) -> Packing:
    """All memory left by batches of equal length is kept, and a tenth of that left by shorter batches."""
    base, varying = PACKINGS[kind], PACKINGS[f"varying, {kind}"]
    kept = base.loss + _KEPT_OF_SHORTER * (varying.loss - base.loss)
    return base._replace(loss=kept, flat=_NEEDS_OF_FIXED_LENGTHS[kind].flat, doubt=1.0)


NEEDS: Mapping[str, Packing] = {
    **_NEEDS_OF_FIXED_LENGTHS,
    **{f"varying, {kind}": _of_varying(kind) for kind in _NEEDS_OF_FIXED_LENGTHS if kind != "alone"},
    **{f"expandable, {kind}": Packing(_PAGES, 0.0, 0.0, 0.0, 0.0, 1.0) for kind in ("whole", "flattened", "sharded")},
}


def packing_class(shape: Shape, recipe: Recipe) -> str:
    """The packing class of a recipe: by what gathers weights, flattens gradients or has buckets for them."""
    if recipe.backend == "fsdp" or recipe.is_stage_3 or recipe.weight_shards > 1:
        kind = "sharded"
    elif shape.has_adapter:
        kind = "adapter"
    else:
        kind = "flattened" if recipe.has_bucket else "alone" if recipe.is_alone else "whole"
    if not (recipe.expandable_segments or recipe.varying_lengths):
        return kind
    kind = "whole" if kind == "alone" or (kind == "adapter" and recipe.expandable_segments) else kind
    return f"{'expandable' if recipe.expandable_segments else 'varying'}, {kind}"


def replayed(ratio: float) -> Packing:
    """Packing from a replay of every tensor: reserved over allocated bytes."""
    return Packing(max(ratio - 1, _PAGES), 0.0, 0.0, 0.0, 0.0, _REPLAY_DOUBT)


def largest_tensors(shape: Shape, recipe: Recipe) -> tuple[float, float]:
    """Bytes of the largest tensor of every micro-batch, and of the largest one proportional to samples."""
    still: float
    if recipe.backend == "fsdp":
        still = recipe.compute_bytes * max(shape.root, shape.layer)  # it gathers unit by unit
    elif recipe.backend == "ddp" and recipe.bucket_view:
        # DDP's buckets and DeepSpeed's flat tensors hold many gradients each; otherwise each is separate.
        still = recipe.gradient_bytes * min(max(shape.vocab * shape.hidden, shape.largest_linear), shape.trainable)
    else:
        still = recipe.gradient_bytes * shape.trainable
    decoder = recipe.decoder
    longest = max(recipe, decoder, key=lambda stack: stack.sequence_length)
    scores = shape.heads * longest.sequence_length if recipe.attention is Attention.EAGER else 0
    inside = recipe.compute_bytes * max(shape.ffn, shape.hidden, scores) * longest.tokens
    return still, max(inside, 4 * shape.vocab * decoder.tokens) / recipe.micro_batch


def whole_segments(largest_tensor: float) -> int:
    """One segment of each used pool, which is reserved however little it holds."""
    return _SMALL_SEGMENT + (_LARGE_SEGMENT if largest_tensor > _SMALL_REQUEST else 0)


def unused_bytes(largest_tensor: float, constants: Constants) -> float:
    """The unused part of one segment of each used pool."""
    return constants.unused_share * whole_segments(largest_tensor)
