"""Memory that lives throughout the run: weights, gradients and optimizer states; libraries' workspaces and the driver.

Sources: ZeRO (1910.02054, section 3); DeepSpeed runtime/engine.py and stage_1_and_2.py; PyTorch FSDP2's fully_shard
documentation; torch.nn.parallel.DistributedDataParallel (gradient_as_bucket_view).
"""

from __future__ import annotations

import math

from memtune.gpus.driver_overhead import CONTEXT_BYTES, NCCL_BYTES, NCCL_BYTES_PER_DOUBLING
from memtune.memory.constants import Constants
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.shape import Shape
from memtune.memory.formulas.terms import (
    AFTER_FIRST_STEP,
    ALWAYS,
    BACKWARD,
    FIRST_LAYER,
    FORWARD,
    LOSS,
    REDUCE,
    REDUCING,
    STEPPING,
    Term,
)

_ZERO = "1910.02054, section 3"
_CAST = "{} B x {:,.0f} weights cast by autocast"
_CACHED_CAST = "aten/src/ATen/autocast_mode.cpp, cached_cast"
# DeepSpeed allocates master weights and moments when the engine starts, but at stages 1 and 2 the moments with the
# first step; nothing peaks before that.


def state_terms(shape: Shape, recipe: Recipe) -> list[Term]:
    """Every term that does not depend on the batch."""
    parallel = _split(shape, recipe)
    terms = _weights(shape, recipe, parallel)
    trainable = shape.trainable / parallel
    if recipe.master_bytes and not recipe.offloads_states:
        terms.append(_per_parameter("master weights", ALWAYS, recipe.master_bytes, trainable, recipe.state_shards))
    if recipe.state_bytes and not recipe.offloads_states:
        lives = AFTER_FIRST_STEP  # also DeepSpeed's (stage_1_and_2.py, initialize_optimizer_states)
        terms.append(_per_parameter("optimizer states", lives, recipe.state_bytes, trainable, recipe.state_shards))
        if recipe.outside_state_bytes and shape.outside:
            outside, shards = shape.outside / parallel, recipe.state_shards
            terms.append(_per_parameter("optimizer states", lives, recipe.outside_state_bytes, outside, shards))
    # In FSDP1's mixed units frozen weights have gradients, too; the root unit has no trained ones.
    terms += _gradients(shape, recipe, trainable + (shape.total - shape.root if recipe.mixes_units else 0))
    if recipe.autocasts and (not shape.has_adapter or recipe.casts_base):
        terms += _autocast_copies(shape, recipe, parallel)
    if recipe.fp32_residuals:
        # The head, which peft's preparation widened, is cast for its product, which saves the copy for its input's
        # gradient.
        size = recipe.compute_bytes * shape.vocab * shape.hidden / parallel
        values = (recipe.compute_bytes, shape.vocab * shape.hidden / parallel)
        terms.append(Term("autocast copies", size, (LOSS,), _CAST, values, _CACHED_CAST))
    return terms


def _split(shape: Shape, recipe: Recipe) -> float:
    """How many ranks split the parameters among them, on average."""
    parallel = recipe.tensor_parallel * recipe.pipeline_parallel
    if not recipe.whole_embedding:
        return parallel
    whole = shape.vocab * shape.hidden / recipe.pipeline_parallel
    return shape.total / (whole + (shape.total - shape.vocab * shape.hidden) / parallel)


def _per_parameter(name: str, phases: tuple[int, ...], each: float, parameters: float, shards: int) -> Term:
    template = "{0:.4g} B x {1:,.0f} parameters" + (" / {2} ranks" if shards > 1 else "")
    return Term(name, each * parameters / shards, phases, template, (each, parameters, shards), _ZERO)


def _weights(shape: Shape, recipe: Recipe, parallel: float) -> list[Term]:
    scales = _scales(shape, recipe, parallel)
    if recipe.offloads_weights:
        return scales
    if not shape.has_adapter:
        return [_per_parameter("weights", ALWAYS, recipe.weight_bytes, shape.total / parallel, recipe.weight_shards)]
    quantized = shape.quantizable if shape.quantization != "none" else 0
    kept = shape.total - quantized
    codes = recipe.base_bytes - recipe.scale_bytes
    size = (quantized * codes + kept * recipe.frozen_bytes) / parallel / recipe.weight_shards
    shards = recipe.weight_shards * parallel
    template = ("({0:,} x {1:.4g} B + {2:,} x {3:.4g} B)" if quantized else "{2:,} x {3:.4g} B") + " frozen"
    template += " / {4} ranks" if shards > 1 else ""
    values = (quantized, codes, kept, recipe.frozen_bytes, shards)
    frozen = Term("weights", size, ALWAYS, template, values, "2305.14314, sections 2 and 3")
    adapter = _per_parameter("adapter", ALWAYS, recipe.weight_bytes, shape.trainable / parallel, recipe.weight_shards)
    return [frozen, adapter, *scales]


def _scales(shape: Shape, recipe: Recipe, parallel: float) -> list[Term]:
    """Scales of quantized weights: tensors beside the parameter that are never sharded or offloaded."""
    if shape.quantization == "none":
        return []
    template, values = "{:,} x {:.4g} B of scales, whole on each rank", (shape.quantizable, recipe.scale_bytes)
    size = shape.quantizable * recipe.scale_bytes / parallel
    return [Term("weights", size, ALWAYS, template, values, "bitsandbytes functional.py, QuantState")]


def _gradients(shape: Shape, recipe: Recipe, trainable: float) -> list[Term]:
    if recipe.step_in_backward:
        # The step runs in each parameter's backward hook: only one layer's gradients exist at a time.
        layer = recipe.gradient_bytes * trainable * shape.layer / shape.total
        template = "{:.4g} B x one layer of the trainable parameters"
        source = "torch optimizer-in-backward"
        return [Term("gradients", layer, (FIRST_LAYER, REDUCE), template, (recipe.gradient_bytes,), source)]
    each = recipe.gradient_bytes
    if recipe.defers_reduction and recipe.accumulates:
        # Whole ones of each micro-batch but the last, in the dtype of the reduction
        # (torch _fsdp_param.py, to_accumulated_grad_if_needed); offloading takes what is reduced.
        phases = (FORWARD, LOSS, *REDUCING)
        whole = _per_parameter("gradients", phases, recipe.reduce_bytes, trainable, 1)
        own = _per_parameter("gradients", STEPPING, each, trainable, recipe.gradient_shards)
        return [whole] if recipe.offloads_gradients else [whole, own]
    if recipe.offloads_gradients and not recipe.has_flat_sums:
        return _offloaded(shape, recipe, trainable)
    if recipe.is_stage_3:
        # A flat buffer, allocated when the engine starts (deepspeed stage3.py, grad_partitions_flat_buffer).
        return [_per_parameter("gradients", ALWAYS, each, trainable, recipe.gradient_shards)]
    # With one micro-batch per step gradients do not exist before the backward pass; with more they live through it.
    reducing = (FORWARD, LOSS, *REDUCING) if recipe.accumulates else (REDUCE,)
    if recipe.whole_fp32_gradients:
        # BF16_Optimizer keeps fp32 sums throughout, and the computed gradients until the step (bf16_optimizer.py).
        whole = _per_parameter("gradients", ALWAYS, each, trainable, 1)
        computed = _per_parameter("gradients", (*reducing, *STEPPING), recipe.compute_bytes, trainable, 1)
        return [whole, computed, *_before_the_last(shape, recipe, computed)]
    terms = [_per_parameter("gradients", (*reducing, *STEPPING), each, trainable, recipe.gradient_shards)]
    if recipe.gradient_shards != recipe.state_shards:
        # The step only has the rank's own partition of whole gradients.
        terms = [
            _per_parameter("gradients", reducing, each, trainable, recipe.gradient_shards),
            _per_parameter("gradients", STEPPING, each, trainable, recipe.state_shards),
        ]
    if recipe.widens_as_it_comes:
        # The rank's own part accumulates beside whole gradients that wait for the bucket.
        terms.append(_per_parameter("gradients", (REDUCE,), each, trainable, recipe.state_shards))
    terms += [early for term in terms for early in _before_the_last(shape, recipe, term)]
    if recipe.backend in ("none", "ddp") and not shape.has_adapter:
        terms += _added(shape, recipe)
    if recipe.backend == "ddp" and not recipe.bucket_view:
        size = recipe.gradient_bytes * trainable
        values = (recipe.gradient_bytes, trainable)
        template = "{:.4g} B x {:,.0f} parameters: the reducer's copy of the gradients"
        source = "torch DistributedDataParallel, gradient_as_bucket_view=False"
        terms.append(Term("buckets", size, ALWAYS, template, values, source))
    return terms


def _offloaded(shape: Shape, recipe: Recipe, trainable: float) -> list[Term]:
    """FSDP1 copies each reduced shard to the host, but drops its own as the backward pass ends (_flat_param.py,
    prepare_gradient_for_optim).
    """
    if not recipe.keeps_reduced:
        return []
    shards = _per_parameter("gradients", (REDUCE,), recipe.gradient_bytes, trainable, recipe.gradient_shards)
    return [shards, *_before_the_last(shape, recipe, shards)]


def _before_the_last(shape: Shape, recipe: Recipe, gradients: Term) -> list[Term]:
    """The gradients that exist while the first layer, whose own come last, is recomputed or differentiated.

    They include those of looked-up tables: a tied head has added its part by then, and so has a decoder that shares the
    encoder's table. FSDP reduces all that is outside the layers at the end.
    """
    if REDUCE not in gradients.phases or FIRST_LAYER in gradients.phases:
        return []
    late = recipe.recomputed_layers / shape.layers
    if not shape.has_adapter:
        outside = 0 if shape.crossed else shape.root - shape.vocab * shape.hidden
        if recipe.backend == "fsdp":
            outside = shape.root
        late = (recipe.recomputed_layers * shape.layer * shape.first_layer_part + outside) / shape.total
    part = max(1 - late, 0.0)
    template, values = "{:,.0f} B x {:.1%} that are not of the first layers", (gradients.bytes, part)
    return [Term("gradients", gradients.bytes * part, (FIRST_LAYER,), template, values, "torch autograd engine")]


def _added(shape: Shape, recipe: Recipe) -> list[Term]:
    """Gradients that are whole before they are added, beside all others."""
    if recipe.backend == "ddp" and recipe.bucket_view and recipe.accumulates:
        return [_on_its_way(shape, recipe)]
    return [_sum_of_tied(shape, recipe)] if shape.is_tied else []


def _on_its_way(shape: Shape, recipe: Recipe) -> Term:
    """The largest gradient, which is whole before it is added; a head's waits for its tied embedding's."""
    table = shape.vocab * shape.hidden
    elements = max((1 + shape.is_tied) * table, shape.largest_linear)
    template, values = "{:.4g} B x {:,.0f} elements that are added", (recipe.gradient_bytes, elements)
    size = recipe.gradient_bytes * elements
    return Term("gradients", size, REDUCING, template, values, "torch autograd InputBuffer, AccumulateGrad")


def _sum_of_tied(shape: Shape, recipe: Recipe) -> Term:
    """The memory beside all gradients when a head's is added to its tied embedding's.

    Torch's gradient of a head is a view, which makes a third tensor of the sum, unless autocast has cast it back.
    """
    elements = (1 if recipe.autocasts else 2) * shape.vocab * shape.hidden
    template, values = "{:.4g} B x {:,.0f} elements that are added", (recipe.gradient_bytes, elements)
    size = recipe.gradient_bytes * elements
    return Term("gradients", size, (REDUCE,), template, values, "torch autograd InputBuffer")


def _autocast_copies(shape: Shape, recipe: Recipe, parallel: float) -> list[Term]:
    # Autocast caches a low-precision copy of every weight that a product used until its context ends, with the forward
    # pass; copies that a product saved for backward live on. A checkpointed layer saves none, and its recomputation
    # casts in a context of its own (torch/utils/checkpoint.py). An embedding is looked up, and not cast. A frozen
    # weight's copy is never cached, but its product saves it all the same, for the gradient of the input.
    cast = (shape.total - shape.root + shape.vocab * shape.hidden) / parallel

    def copies(weights: float, phases: tuple[int, ...]) -> Term:
        size = recipe.compute_bytes * weights
        return Term("autocast copies", size, phases, _CAST, (recipe.compute_bytes, weights), _CACHED_CAST)

    mode = recipe.checkpointing.mode
    if mode == "none":
        return [copies(cast, (FORWARD, LOSS, BACKWARD)), copies(min(shape.layer / parallel, cast), (FIRST_LAYER,))]
    head = min(shape.vocab * shape.hidden / parallel, cast)
    layers = min(shape.layer * recipe.recomputed_layers / parallel, cast)
    forward = head if shape.has_adapter else cast
    return [copies(forward, (FORWARD,)), copies(head, (LOSS,)), copies(layers, (BACKWARD, FIRST_LAYER))]


def workspace_terms(recipe: Recipe, constants: Constants) -> list[Term]:
    """Workspaces of the CUDA libraries in the allocator; a virtual GPU has none."""
    if recipe.virtual:
        return []
    size = recipe.workspace_bytes or constants.workspace_bytes
    return [Term("workspace", size, ALWAYS, "{:,.0f} B of cuBLAS workspaces", (size,), "CublasHandlePool.cpp")]


def driver_overhead_terms(recipe: Recipe) -> list[Term]:
    """The terms outside the allocator. A virtual GPU has no driver and no overhead."""
    if recipe.virtual:
        return []
    # A context measured for this image and GPU overrides the constant.
    context = recipe.context_bytes or CONTEXT_BYTES
    terms = [Term("context", context, ALWAYS, "{:,.0f} B of CUDA context and kernels", (context,), "pytorch#86509")]
    if recipe.world > 1:
        # As in `expected_overhead`, which a test holds equal: a term has its formula written out with its numbers.
        size = NCCL_BYTES + NCCL_BYTES_PER_DOUBLING * math.log2(recipe.world)
        template = "{:,.0f} B + {:,.0f} B x log2({}) ranks of NCCL buffers"
        values = (NCCL_BYTES, NCCL_BYTES_PER_DOUBLING, recipe.world)
        terms.append(Term("nccl", size, ALWAYS, template, values, "nccl#964, nccl#864"))
    return terms
