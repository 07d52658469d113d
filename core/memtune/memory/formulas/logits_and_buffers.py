"""Transient buffers within a step: gathered units, reduce buckets, logits and temporaries of the optimizer step.

Sources: DeepSpeed runtime/zero/config.py (bucket sizes), stage3.py, stage_1_and_2.py; PyTorch FSDP2 fully_shard (a unit
is gathered in compute precision, the root unit is not resharded after its forward); transformers loss/loss_utils.py
(fp32 upcast of the logits). `memory/optimizer_bytes.py` has what the steps of optimizers take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from memtune.memory.constants import Constants
from memtune.memory.formulas.packing import LossBlocks
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.shape import Shape
from memtune.memory.formulas.terms import (
    ALWAYS,
    BACKWARD,
    DRIVER_OVERHEAD,
    EVALUATION,
    FIRST_LAYER,
    FORWARD,
    INIT,
    LOSS,
    REDUCE,
    REDUCING,
    SAVE,
    STEPPING,
    Term,
)
from memtune.memory.workload import Evaluation
from memtune.plans.deepspeed_config import MAX_LIVE_BUCKETS, SUB_GROUP_ELEMENTS
from memtune.plans.knobs import Attention

# DeepSpeed runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE.
ALLREDUCE_ELEMENTS = 500_000_000
# Scores, their fp32 softmax, and its half-precision copy, unless the scores are fp32 (transformers
# eager_attention_forward): 2 + 4 + 2 or 4 + 4.
EAGER_SCORE_BYTES = 8

# DeepSpeed's norms of gradients (runtime/utils.py, get_norm_dtype).
_NORM_BYTES = 8
_FP32 = 4

_COMPUTING = (FORWARD, LOSS, *REDUCING)


def buffer_terms(shape: Shape, recipe: Recipe, constants: Constants) -> list[Term]:
    """Every term that lives within one step only, except activations."""
    terms = []
    if recipe.weight_shards > 1 or recipe.offloads_weights or recipe.backend == "fsdp":
        terms += _gathered(shape, recipe)
    if recipe.bucket_phases:
        terms += _buckets(shape, recipe)
    if shape.quantization != "none":
        terms.append(_unpacked(shape, recipe))
    terms += _logits(shape, recipe, constants)
    terms += step_transients(shape, recipe)
    return terms


def _unit_bytes(shape: Shape, recipe: Recipe) -> tuple[float, float]:
    """The root unit and one layer, unsharded, in the precision they are gathered in."""
    parallel = recipe.tensor_parallel
    whole = shape.vocab * shape.hidden if recipe.whole_embedding else 0
    root = (whole + (shape.root - whole) / parallel) * recipe.compute_bytes
    if shape.quantization == "none":
        return root, shape.layer * recipe.compute_bytes / parallel
    return root, shape.layer * (recipe.base_bytes - recipe.scale_bytes) / parallel


def _gathered(shape: Shape, recipe: Recipe) -> list[Term]:
    if recipe.backend == "deepspeed":
        return _live_parameters(shape, recipe)
    root, layer = _unit_bytes(shape, recipe)
    terms = _gathered_units(shape, recipe, root, layer)
    if not shape.has_adapter or recipe.mixes_units:
        # A unit's gradients are unsharded until reduced; the head's wait for the embedding's, the last to be ready, of
        # which an encoder-decoder has the decoder's part before the first layer. A unit is copied for the reduction, in
        # the dtype in which gradients are reduced.
        copy = shape.layer * recipe.reduce_bytes / recipe.tensor_parallel
        root = 0.0 if shape.has_adapter else root
        head = min(shape.vocab * shape.hidden * recipe.compute_bytes / recipe.tensor_parallel, root)
        template = "unsharded gradients of the {} {:,.0f} B and of one layer {:,.0f} B + {:,.0f} B on their way"
        early, late = ((BACKWARD,), (FIRST_LAYER, REDUCE)) if shape.crossed else ((BACKWARD, FIRST_LAYER), (REDUCE,))
        units = (("head", head, 1.0, early), ("root unit", root, shape.first_layer_part, late))
        for unit, waiting, part, living in units:
            values, source = (unit, waiting, part * layer, part * copy), "torch fully_shard, foreach_reduce"
            terms.append(Term("buckets", waiting + part * (layer + copy), living, template, values, source))
        # A tied head's gradient and the embedding's make a third tensor of their sum, when no layer is left.
        layers = (1 + _arriving(recipe)) * layer + copy
        if shape.is_tied and not shape.crossed and 2 * head > layers:
            template, added = "2 x {:,.0f} B that are added - {:,.0f} B of layers before", (head, layers)
            terms.append(Term("buckets", 2 * head - layers, (REDUCE,), template, added, "torch autograd InputBuffer"))
    return terms


def _table(shape: Shape) -> int:
    """Elements of the embedding, or of the head; of a model without a vocabulary, of all that is outside the layers."""
    return min(shape.root, shape.vocab * shape.hidden) if shape.vocab else shape.root


def _live_limit(shape: Shape, recipe: Recipe) -> int:
    """The parameters that stage 3 keeps gathered; memtune.plans.deepspeed_config moves the limit with the bucket."""
    return max(recipe.live_elements or recipe.bucket_elements * MAX_LIVE_BUCKETS, shape.layer)


def _live_parameters(shape: Shape, recipe: Recipe) -> list[Term]:
    """The parameters that DeepSpeed has gathered (partitioned_param_coordinator.py).

    Every module prefetches until max_live is reached, at most the whole model; the computing module is gathered in any
    case; an embedding is released before the head is gathered. In the backward pass the embedding is the last weight
    that is prefetched: as a whole, as soon as there is any room. When its gradient is ready, nothing else is gathered.
    """
    table, limit = _table(shape), _live_limit(shape, recipe)
    live = float(min(max(limit, table), shape.total))
    phases = [((FORWARD, LOSS, BACKWARD), live), ((FIRST_LAYER,), float(min(limit + table, shape.total)))]
    phases.append(((REDUCE,), float(max(table, shape.layer))))
    if shape.has_adapter:
        # Nothing differentiates the embedding.
        phases = [(_COMPUTING, live)]
    each, template = recipe.compute_bytes / recipe.tensor_parallel, "{:,.0f} live and prefetched parameters x {} B"
    terms = [
        Term("gathered units", elements * each, when, template, (elements, recipe.compute_bytes), "zero/config.py")
        for when, elements in phases
    ]
    if recipe.keeps_gathered:
        # Products of torch's own keep the storage of gathered weights (deepspeed#8189): the layers' until their
        # backward pass, if they are not recomputed, and the head's, which is gathered a second time. The live
        # parameters are the head and, up to the limit, layers that were not released.
        table = shape.vocab * shape.hidden
        layers = shape.layers * shape.layer if recipe.checkpointing.mode == "none" else 0
        kept = (max(float(layers + table) - live, 0.0) + table) / recipe.tensor_parallel
        template, parts = "{:,.0f} parameters kept for the backward pass x {} B", (kept, recipe.compute_bytes)
        size = kept * recipe.compute_bytes
        terms.append(Term("gathered units", size, (FORWARD, LOSS, BACKWARD), template, parts, "deepspeed#8189"))
    return terms


def bytes_behind(shape: Shape, recipe: Recipe, terms: Sequence[Term]) -> float:
    """Gathered weights beyond ``terms`` that stage 3 has released, but kernels may still use.

    A released weight is taken off the limit of live ones as the CPU launches its kernels, while the allocator keeps its
    block until they are done (partition_parameters.py, free_param: record_stream). In the forward pass the CPU waits
    for gathers alone, which have a stream and blocks of their own: where computing takes longer, up to all weights are
    there.
    """
    if not recipe.is_stage_3 or recipe.weight_shards == 1 or recipe.offloads_weights:
        return 0.0
    gathered = sum(term.bytes for term in terms if term.name == "gathered units" and LOSS in term.phases)
    return max(recipe.compute_bytes * shape.total / recipe.tensor_parallel - gathered, 0.0)


def _arriving(recipe: Recipe) -> int:
    return 2 if recipe.weight_shards > 1 else 1


def _gathered_units(shape: Shape, recipe: Recipe, root: float, layer: float) -> list[Term]:
    """Units of FSDP: one computes while the next arrives, or all stay for the backward pass, which reshards them.

    A single rank copies its units too, but never waits (_fsdp_param_group.py, wait_for_unshard). At the loss only what
    the last unit was copied from is there. While the first layer, the last of the backward pass, computes, none
    arrives.
    """
    at_once = _arriving(recipe)
    template, few, sizes = "root unit {:,.0f} B + {} layers x {:,.0f} B", root + at_once * layer, (root, at_once, layer)
    first = layer * shape.first_layer_part
    last = Term("gathered units", root + first, (FIRST_LAYER,), template, (root, 1, first), "torch fully_shard")
    if not recipe.keeps_gathered:
        between = Term("gathered units", root + layer, (LOSS,), template, (root, 1, layer), "torch fully_shard")
        phases = (FORWARD, BACKWARD, REDUCE)
        return [Term("gathered units", few, phases, template, sizes, "torch fully_shard"), between, last]
    layers = layer * (shape.total - shape.root) / shape.layer
    source, kept = "torch fully_shard, reshard_after_forward=False", "root unit {:,.0f} B + all layers {:,.0f} B"
    return [
        Term("gathered units", root + layers, (FORWARD, LOSS, BACKWARD), kept, (root, layers), source),
        Term("gathered units", few, (REDUCE,), template, sizes, source),
        last,
    ]


def _bucket(elements: float, width: float, phases: tuple[int, ...], template: str, source: str) -> Term:
    return Term("buckets", elements * width, phases, template, (elements, width), source)


def _buckets(shape: Shape, recipe: Recipe) -> list[Term]:
    # Except at stage 1, gradients are reduced in compute precision, even if they accumulate in another.
    trainable, width = shape.trainable / recipe.tensor_parallel, recipe.compute_bytes
    template = "{:,.0f} elements x {:.4g} B"
    if not recipe.has_bucket:
        # Without a bucket, gradients are flattened or narrowed for the reduction: fp32 sums are one tensor, however
        # large.
        source = "deepspeed runtime/engine.py, buffered_allreduce_fallback"
        reduced = trainable if recipe.whole_fp32_gradients else min(ALLREDUCE_ELEMENTS, trainable)
        return [_bucket(reduced, width, (REDUCE,), template, source)]
    # From stage 1 on the buffer has its full size, however few parameters there are.
    capacity, source = float(recipe.bucket_elements), "deepspeed stage_1_and_2.py and stage3.py, reduce_bucket_size"
    # Two buffers take turns if reduction overlaps the backward pass; stage 3 has one in any case.
    at_once = 2 if recipe.overlaps_reduction and not recipe.is_stage_3 else 1
    terms = [_bucket(at_once * capacity, recipe.bucket_bytes, recipe.bucket_phases, template, source)]
    filled = min(capacity, trainable)
    copies = _copies_to_reduce(recipe, dict.fromkeys(REDUCING if trainable > capacity else (REDUCE,), filled))
    if recipe.is_stage_3 and not shape.has_adapter:
        copies = _copies_to_reduce(recipe, _reduced_by_stage_3(shape, recipe))
    if not shape.has_adapter:
        terms += _waiting_gradients(shape, recipe, filled if copies else 0.0)
    if not recipe.offloads_states or recipe.is_stage_3 or shape.has_adapter:
        return terms + copies
    largest = max(shape.vocab * shape.hidden, shape.largest_linear) / recipe.tensor_parallel
    template, source = "{:,.0f} elements of the largest weight x {:.4g} B", "temp_grad_buffer_for_gpu_offload"
    terms.append(_bucket(largest, width, ALWAYS, template, f"deepspeed stage_1_and_2.py, {source}"))
    if largest > capacity:
        template, source = "{:,.0f} elements of a gradient beside the bucket x {:.4g} B", "extra_large_param_to_reduce"
        terms.append(_bucket(largest, width, (REDUCE,), template, f"deepspeed stage_1_and_2.py, {source}"))
    # Once reduced, each gradient of the rank's partition is widened to 64 bits for its norm, the embedding's last.
    own, template = min(largest, trainable / recipe.state_shards), "{:,.0f} elements of a gradient x {} B for its norm"
    source = "deepspeed stage_1_and_2.py, set_norm_for_param_grad_in_gpu"
    norm = _bucket(own, _NORM_BYTES, (REDUCE,), template, source)
    if norm.bytes <= sum(copy.bytes for copy in copies):
        return terms + copies
    # By then, the copies for the reduction are free again.
    return [*terms, norm, *(copy._replace(phases=(BACKWARD,)) for copy in copies if BACKWARD in copy.phases)]


def _reduced_by_stage_3(shape: Shape, recipe: Recipe) -> dict[int, float]:
    """The elements of a full bucket that are copied while the most is gathered.

    A bucket is full when as many weights were differentiated, and released since then. So it is copied beside
    gathered weights as far as others were left to be gathered.
    """
    parallel, table, limit = recipe.tensor_parallel, _table(shape), _live_limit(shape, recipe)
    full = min(float(recipe.bucket_elements), shape.trainable / parallel)
    if recipe.weight_shards == 1 and not recipe.offloads_weights:
        return dict.fromkeys(REDUCING, full)
    early = min(full, (shape.total - min(max(limit, table), shape.total)) / parallel)
    # By then, the head's own gradient is in the bucket, unless it waits.
    early = early if shape.is_tied else max(early - table / parallel, 0.0)
    # The embedding is prefetched once all others that are not released are within the limit.
    others = (shape.total - table) / parallel
    late = max(others - ceil(max(others - limit, 0.0) / full) * full + full - limit, 0.0) if others > limit else 0.0
    return {BACKWARD: early, FIRST_LAYER: min(late, full), REDUCE: full}


def _waiting_gradients(shape: Shape, recipe: Recipe, copied: float) -> list[Term]:
    """Gradients of the largest weights before the bucket has them.

    The head's is the first. A tied one waits for the embedding's, the last, since a weight has one hook for the sum of
    both. That is a third tensor, since torch's gradient of the head is a view; that of stage 3's own product is not
    (zero/linear.py). When the last bucket is copied, with ``copied`` elements, the sum alone is left.
    """
    table = _table(shape) / recipe.tensor_parallel if shape.vocab else 0.0
    sizes: dict[tuple[int, ...], float] = {}
    if shape.is_tied and (recipe.gradient_shards > 1 or recipe.is_stage_3):
        together = 2 if recipe.is_stage_3 and not recipe.checkpointing.keeps_products else 3
        sizes = {(BACKWARD, FIRST_LAYER): table, (REDUCE,): max(together * table - copied, table)}
    elif shape.is_tied:
        # All gradients are there until the end, the sum among them.
        sizes = {(REDUCE,): 2 * table}
    elif recipe.is_stage_3:
        sizes = {(BACKWARD, REDUCE): table}
    template, width = "{:,.0f} elements of gradients before the bucket x {} B", recipe.compute_bytes
    source = "torch autograd InputBuffer, AccumulateGrad"
    return [
        Term("buckets", elements * width, phases, template, (elements, width), source)
        for phases, elements in sizes.items()
        if elements
    ]


def _copies_to_reduce(recipe: Recipe, filled: Mapping[int, float]) -> list[Term]:
    """Copies of as many elements of a bucket as each phase reduces.

    Stage 1 copies when all gradients exist, each freed before its copy. A single rank flattens one slice, which below
    stage 3 is no copy, except for sums: each weight is a slice of theirs.
    """
    width, template = recipe.reduced_bytes, "{:,.0f} elements x {:.4g} B on their way"
    if recipe.widens_as_it_comes:
        # The copy is narrowed.
        return [_bucket(filled[REDUCE], width, (REDUCE,), template, "deepspeed stage_1_and_2.py, allreduce_bucket")]
    if recipe.gradient_shards == 1 and not recipe.is_stage_3 and not recipe.has_flat_sums:
        return []
    source, copies = "deepspeed allreduce_bucket, reduce_scatter_coalesced", []
    for elements in sorted(set(filled.values()), reverse=True):
        phases = tuple(phase for phase in filled if filled[phase] == elements)
        copies.append(_bucket(elements, width, phases, template, source))
        if recipe.is_stage_3 and recipe.gradient_bytes > width:
            # The rank's own part is widened beside it.
            kept, widened = elements / recipe.gradient_shards, "{:,.0f} elements x {:.4g} B in fp32"
            copies.append(
                _bucket(kept, recipe.gradient_bytes, phases, widened, "deepspeed stage3.py, __avg_scatter_grads")
            )
    return copies


def _unpacked(shape: Shape, recipe: Recipe) -> Term:
    elements = shape.largest_linear / recipe.tensor_parallel
    template = "{:,.0f} elements of the largest quantized matrix x {} B"
    values = (elements, recipe.compute_bytes)
    return Term(
        "gathered units", elements * recipe.compute_bytes, _COMPUTING, template, values, "bitsandbytes matmul_4bit"
    )


def logit_bytes(shape: Shape, recipe: Recipe, constants: Constants) -> float:
    """Bytes per token and vocabulary entry at the loss: as the backward pass begins or, if more, before it.

    Eager: the logits, and in fp32, or in their own format if the loss does not upcast them, their log-softmax, its
    gradient and the gradient of the log-softmax's input, which is in the logits' own format if autocast widened them
    (autocast_mode.cpp: log_softmax takes the wider dtype as its argument). Tensor parallelism computes that in
    elementary operations, with one tensor more (torch/distributed/tensor/parallel/loss.py,
    _nll_loss_and_log_softmax_backward). A kernel has the logits and what it makes for each, a compiled loss the logits
    even if the caller drops them, and their gradient. A tanh that bounds logits keeps its output beside them.
    """
    if recipe.compiles_loss:
        return _returned_bytes(recipe) + recipe.compute_bytes
    if recipe.loss_kernel_bytes is not None:
        return _head_bytes(shape, recipe) + recipe.loss_kernel_bytes
    tensors = 4 / 3 if recipe.tensor_parallel > 1 and not recipe.whole_logits else 1
    width = 1 if recipe.upcasts_loss else recipe.compute_bytes / 4
    narrowed = 4 - recipe.compute_bytes if recipe.autocasts_loss else 0
    backward = _held_bytes(shape, recipe) + constants.eager_loss_bytes * tensors * width - narrowed
    return max(backward, forward_logit_bytes(shape, recipe))


def forward_logit_bytes(shape: Shape, recipe: Recipe) -> float:
    """The same at the end of the forward pass, where autocast still has its copies of weights.

    The logits with a copy in fp32 that the loss makes itself, another one if it shifts them, and their log-softmax.
    """
    head = _head_bytes(shape, recipe)
    log_softmax = 4 if recipe.upcasts_loss else recipe.compute_bytes
    is_wide = recipe.autocasts_loss or recipe.returns_fp32_logits or recipe.compute_bytes == log_softmax
    return head + (0 if is_wide else 4) + log_softmax + (log_softmax if recipe.shifts_logits else 0)


def _head_bytes(shape: Shape, recipe: Recipe) -> float:
    """Bytes that the head makes for each logit: the logit itself, and its tanh."""
    return _returned_bytes(recipe) + (recipe.compute_bytes if shape.logit_softcap else 0)


def _held_bytes(shape: Shape, recipe: Recipe) -> float:
    """The part of that which remains when the backward pass begins."""
    return _head_bytes(shape, recipe) - (_returned_bytes(recipe) if recipe.drops_outputs else 0)


def _returned_bytes(recipe: Recipe) -> float:
    """Bytes that the caller keeps for each logit: accelerate converts it to fp32."""
    return 4.0 if recipe.keeps_fp32_logits or recipe.returns_fp32_logits else float(recipe.compute_bytes)


def loss_blocks(shape: Shape, recipe: Recipe) -> LossBlocks:
    """The blocks of an eager loss. A fused, chunked or compiled one has no tensors that are larger than all others."""
    if recipe.fused_loss or recipe.chunked_loss or recipe.loss_kernel_bytes is not None or recipe.compiles_loss:
        return LossBlocks()
    split = 1 if recipe.whole_logits else recipe.tensor_parallel
    entries = shape.vocab * recipe.decoder.tokens / split / recipe.micro_batch
    wide = 4 if recipe.upcasts_loss else recipe.compute_bytes
    returned = _returned_bytes(recipe)
    widest = max(shape.ffn, shape.hidden * max(shape.expert_copies, 1))
    inside = recipe.compute_bytes * widest * recipe.tokens / recipe.tensor_parallel / recipe.micro_batch
    return LossBlocks(wide * entries, returned * entries if recipe.drops_outputs and returned < wide else 0.0, inside)


def _logits(shape: Shape, recipe: Recipe, constants: Constants) -> list[Term]:
    split = 1 if recipe.whole_logits else recipe.tensor_parallel
    tokens, each = recipe.decoder.tokens / split, logit_bytes(shape, recipe, constants)
    if recipe.fused_loss:
        each = each / recipe.loss_chunks
    elif recipe.chunked_loss:
        # The logits of all chunks stay in compute precision; only one chunk at a time has more.
        kept = _held_bytes(shape, recipe)
        each = kept + (each - kept) / recipe.loss_chunks
    template, source = "{:.3g} B x {:,.0f} tokens x {} entries of the vocabulary", "transformers loss_utils.py"
    # Only copies of weights beside it can make the end of the forward pass peak.
    before = min(each, forward_logit_bytes(shape, recipe)) if recipe.autocasts else 0.0
    terms = [
        Term("logits", size * tokens * shape.vocab, (phase,), template, (size, tokens, shape.vocab), source, True)
        for phase, size in ((FORWARD, before), (LOSS, each))
        if size or phase == LOSS
    ]
    if recipe.keeps_fp32_logits and shape.vocab:
        # A loop variable holds them until the next micro-batch replaces them.
        template, source = "4 B x {:,.0f} tokens x {} logits kept", "accelerate operations.py, ConvertOutputsToFp32"
        phases = (*(() if recipe.autocasts else (FORWARD,)), *REDUCING, *STEPPING)
        size = 4.0 * tokens * shape.vocab
        terms.append(Term("logits", size, phases, template, (tokens, shape.vocab), source, True))
    if recipe.tensor_parallel > 1 and shape.vocab:
        # Sequence parallelism gathers the whole sequence before the head, and its gradient after (2205.05198, 4.2.2).
        size = 2.0 * recipe.tokens * shape.hidden * recipe.compute_bytes
        template, values = "2 x {:,.0f} tokens x {} x {} B", (recipe.tokens, shape.hidden, recipe.compute_bytes)
        terms.append(Term("gathered units", size, (LOSS,), template, values, "2205.05198, section 4.2.2", True))
    if recipe.widens_head:
        terms += _widened_head(shape, recipe, each * tokens * shape.vocab)
    if (recipe.fused_loss or recipe.chunked_loss) and not shape.has_adapter and not recipe.accumulates:
        # The head's gradient accumulates chunk by chunk while other chunks' logits still exist (2410.10989, 3.2).
        size = recipe.gradient_bytes * shape.vocab * shape.hidden / recipe.tensor_parallel
        template, values = "{:.4g} B x {} x {} of the head", (recipe.gradient_bytes, shape.vocab, shape.hidden)
        terms.append(Term("gradients", size, (LOSS,), template, values, "2410.10989, section 3.2"))
    if recipe.loss_differentiates:
        terms += _differentiated(shape, recipe)
    return terms


def _differentiated(shape: Shape, recipe: Recipe) -> list[Term]:
    """What Liger's loss has beside a part's logits: the gradient of all hidden states, and of a head that learns the
    part's product and its copy in fp32, which are added to the sum.
    """
    source = "Liger ops/fused_linear_cross_entropy.py"
    wide, tokens, head = recipe.compute_bytes, recipe.decoder.tokens, shape.vocab * shape.hidden
    values: tuple[object, ...] = (wide, tokens, shape.hidden)
    template = "{} B x {:,.0f} tokens x {} of the gradient of the head's input"
    terms = [Term("gradients", wide * tokens * shape.hidden, (LOSS,), template, values, source, True)]
    if not shape.has_adapter:
        template, values = "({} + {}) B x {:,.0f} elements of the head that are added", (wide, _FP32, head)
        terms.append(Term("gradients", (wide + _FP32) * head, (LOSS,), template, values, source))
    return terms


def _widened_head(shape: Shape, recipe: Recipe, part: float) -> list[Term]:
    """Copies of the head beyond the ``part`` of the logits, if the loss copies a narrower one to fp32 for each part.

    TRL's did before 1.13 (sft_trainer.py, _chunk). For the product, the copy is there with the part's logits: under
    autocast with its cast, else with its gradient if it learns. Then what the product saved is there, with the whole
    part. Under FSDP it was never emulated.
    """
    is_wide = recipe.autocasts and not shape.has_adapter
    resident = recipe.frozen_bytes if shape.has_adapter else _FP32 if is_wide else recipe.compute_bytes
    if resident >= _FP32 or recipe.backend == "fsdp":
        return []
    is_cast = recipe.backend in ("none", "ddp") and not recipe.without_autocast
    learns = not shape.has_adapter
    copied, saved = (_FP32 + recipe.compute_bytes, recipe.compute_bytes) if is_cast else (_FP32 * (1 + learns), _FP32)
    head = shape.vocab * shape.hidden
    entries = recipe.decoder.tokens * shape.vocab / recipe.loss_chunks
    product = copied * head + (recipe.compute_bytes if is_cast else _FP32) * entries
    size = max(product - part, saved * head)
    template = "{} B x {} x {} of the head, less what of a part's logits is not there yet"
    values = (copied, shape.vocab, shape.hidden)
    return [Term("autocast copies", size, (LOSS,), template, values, "TRL sft_trainer.py, _chunk")]


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
        # sub-group. Bucketed gradients are flattened first, and copied once more if the master weights are wider.
        elements = min(trainable, SUB_GROUP_ELEMENTS) if recipe.is_stage_3 else trainable
        flat = recipe.gradient_bytes if recipe.has_bucket else 0.0
        widened = recipe.master_bytes if flat < recipe.master_bytes else 0.0
        each = 0.0 if recipe.has_flat_sums else flat + widened
        template, source = "{:.4g} B x {:,.0f} gradients, flat and in fp32", "deepspeed stage_1_and_2.py, step"
        step = Term("step transients", each * elements, STEPPING, template, (each, elements), source)
        if not recipe.has_bucket or shape.has_adapter:
            return [step]
        # Before that, each gradient of the rank is widened to 64 bits for its norm; one rank has the embedding's.
        largest = max(shape.vocab * shape.hidden, shape.largest_linear) / recipe.tensor_parallel
        own = largest / recipe.state_shards if recipe.is_stage_3 else min(largest, trainable)
        template, source = "{:,.0f} elements of a gradient x {} B for its norm", "deepspeed, get_grad_norm_direct"
        norm = Term("step transients", own * _NORM_BYTES, STEPPING, template, (own, _NORM_BYTES), source)
        return [max(step, norm, key=lambda term: term.bytes)]
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
        terms.append(Term("step transients", size, STEPPING, template, values, "torch/optim"))
    # Two optimizers step one after the other.
    return [max(terms, key=lambda term: term.bytes)] if terms else []


def evaluation_terms(shape: Shape, recipe: Recipe, evaluation: Evaluation) -> list[Term]:
    """An evaluation batch: one layer at a time, dominated by scores or logits; and the KV cache of generation.

    Of two stacks with different lengths the longer one has the larger layer; logits are the decoder's.
    """
    if not evaluation.batch_size:
        return []
    source, target = recipe.sequence_length, recipe.decoder.sequence_length
    longest = max(source, target)
    tokens, targets = float(evaluation.batch_size * longest), float(evaluation.batch_size * target)
    width = 2 * shape.ffn + 4 * shape.hidden
    logits = recipe.compute_bytes + 8.0
    if evaluation.keeps_logits:
        # Kept in fp32 and joined with earlier batches': the old, the new and their concatenation.
        logits += 8.0
    last, template = targets * logits * shape.vocab, "{:.3g} B x {:,.0f} tokens x {} entries of the vocabulary"
    values: tuple[object, ...] = (logits, targets, shape.vocab)
    scores = tokens * EAGER_SCORE_BYTES * shape.heads * longest if recipe.attention is Attention.EAGER else 0.0
    if scores > last:
        last, template = scores, "{} B x {:,.0f} tokens x {} heads x {} scores"
        values = (EAGER_SCORE_BYTES, tokens, shape.heads, longest)
    size = tokens * recipe.compute_bytes * width + last
    template, values = "{} B x {:,.0f} tokens x {} + " + template, (recipe.compute_bytes, tokens, width, *values)
    terms = [Term("evaluation", size, (EVALUATION,), template, values, "transformers trainer.py, evaluation_loop")]
    if evaluation.generates:
        generation = evaluation.generation(target, source if shape.crossed else 0)
        terms.append(_kv_cache(shape, recipe, generation.cached_tokens))
    return terms


def _kv_cache(shape: Shape, recipe: Recipe, tokens: int) -> Term:
    each = 2 * shape.cached_layers * shape.key_value * recipe.compute_bytes
    template = "2 x {} layers x {} x {} B x {:,.0f} tokens of KV cache, in whole pages"
    values = (shape.cached_layers, shape.key_value, recipe.compute_bytes, tokens)
    return Term("evaluation", each * tokens, (EVALUATION,), template, values, "2309.06180, section 3")


def building_terms(shape: Shape, recipe: Recipe, terms: Sequence[Term]) -> list[Term]:
    """Startup memory beyond ``terms`` that exist from the start: FSDP shards whole units, DeepSpeed a whole model.

    Without zero.Init the engine moves all of it to the GPU (deepspeed runtime/engine.py, _configure_distributed_model);
    stages 1 and 2 then copy it into a flat tensor, since deepspeed#7828 (February 2026) on the GPU.
    """
    if recipe.backend == "fsdp" and recipe.weight_shards > 1:
        return [_largest_unit(shape, recipe, INIT, "torch.distributed.fsdp, _move_states_to_device")]
    learns = 0 if shape.has_adapter else shape.total
    quantized = shape.quantizable if shape.quantization != "none" else 0
    frozen = shape.total - learns - quantized
    whole = learns * recipe.weight_bytes + frozen * recipe.frozen_bytes + quantized * recipe.base_bytes
    source = "deepspeed runtime/engine.py, _configure_distributed_model"
    if recipe.has_bucket and not recipe.is_stage_3 and not recipe.older_deepspeed:
        whole += shape.trainable * recipe.weight_bytes
        source = "deepspeed stage_1_and_2.py, flatten_dense_tensors_aligned"
    elif not (recipe.is_stage_3 and recipe.builds_whole):
        return []
    there = sum(
        term.bytes for term in terms if INIT in term.phases and term.name not in (*DRIVER_OVERHEAD, "workspace")
    )
    if whole <= there:
        return []
    template = "{:,.0f} B of the whole model and its copy before it is sharded - {:,.0f} B that come after it"
    return [Term("gathered units", whole - there, (INIT,), template, (whole, there), source)]


def save_terms(shape: Shape, recipe: Recipe) -> list[Term]:
    """Saving gathers one unit at a time if weights are sharded."""
    if recipe.weight_shards == 1:
        return []
    return [_largest_unit(shape, recipe, SAVE, "torch.distributed.checkpoint.state_dict")]


def _largest_unit(shape: Shape, recipe: Recipe, phase: int, source: str) -> Term:
    size = recipe.weight_bytes * max(shape.root, shape.layer) / recipe.tensor_parallel
    template = "{:.4g} B x {:,} parameters of the largest unit"
    values = (recipe.weight_bytes, max(shape.root, shape.layer))
    return Term("gathered units", size, (phase,), template, values, source)
