"""Activation memory: what the forward pass keeps for the backward pass, per layer, in one stack or two.

Sources: Korthikanti et al. 2205.05198, sections 4 and 5 (34sbh with dropout, 5as^2b without flash attention); what
autograd saves for each operation: PyTorch, tools/autograd/derivatives.yaml; FlashAttention-2 saves q, k, v, out and one
fp32 logsumexp per head and token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from memtune.memory.constants import Constants
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.shape import Shape
from memtune.memory.formulas.terms import BACKWARD, FIRST_LAYER, FORWARD, LOSS, REDUCE, REDUCING, Term
from memtune.model.architecture import Architecture
from memtune.plans.knobs import Attention

_KORTHIKANTI = "2205.05198, section 4"
_SAVED = "torch derivatives.yaml; 2205.05198, section 4"
_FP32 = 4
_RING = "torch.distributed.tensor.experimental, _templated_ring_attention_backward"
_LIVE = "layer in backward"
_BEFORE = (FORWARD, LOSS, BACKWARD, REDUCE)
_TENSORS_OF_A_CUBE = 5  # activation_tensors only of gelu_new, which is written out with a power


class LayerBytes(NamedTuple):
    """Bytes per token that one layer keeps, by part; `masks` are dropout's, `inputs` are read only by adapters."""

    norms: float
    attention: float
    mlp: float
    masks: float
    inputs: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.norms + self.attention + self.mlp + self.masks + self.inputs


def layer_bytes(shape: Shape, recipe: Recipe) -> LayerBytes:
    """Bytes per token that one layer keeps without checkpointing."""
    return LayerBytes(
        norms=_norms(shape, recipe),
        attention=_attention(shape, recipe),
        mlp=_mlp(shape, recipe),
        masks=_masks(shape) + (shape.ffn if shape.ffn_dropout else 0),
        inputs=_own_input_bytes(shape, recipe) * shape.adapter_reads,
    )


def picture_bytes(tower: Architecture) -> int:
    """Activations that a vision tower keeps for one image without checkpointing: 18h + 4 ffn per layer and patch
    (section 4).
    """
    assert tower.image
    return tower.image.tokens * tower.layers * (18 * tower.hidden_size + 4 * tower.ffn_size)


def cross_bytes(shape: Shape, recipe: Recipe) -> LayerBytes:
    """The activations that cross-attention adds to a decoder layer: its norm, query and output, and the source's keys
    and values.

    Keys and values are projected from the encoder's output, which all decoder layers share and which is counted
    elsewhere. Their number is the source's tokens; all other bytes are per target token.
    """
    masks, inputs = _masks(shape) / 2, _own_input_bytes(shape, recipe) * shape.crossing_reads
    attention = _attention(shape, recipe)
    if recipe.source_length:
        attention = _attention(shape, replace(recipe, sequence_length=recipe.source_length))
        attention += 2 * recipe.compute_bytes * _keys(shape, recipe) * (recipe.source_tokens / recipe.tokens - 1)
    return LayerBytes(_norms(shape, recipe) / shape.norms, attention, 0.0, masks, inputs)


def _norms(shape: Shape, recipe: Recipe) -> float:
    wide, hidden = recipe.compute_bytes, shape.hidden
    # The output of a norm is kept as the input of a trainable projection, and again for the norm's own scale.
    learns = not shape.has_adapter or recipe.mixes_units
    # bitsandbytes' 4-bit product keeps its input although its weight is frozen (autograd/_functions.py, MatMul4Bit).
    # Recent versions do not, but published peaks are above rather than below this.
    is_kept = learns or recipe.fp32_residuals or recipe.keeps_frozen_inputs
    read = shape.norms if is_kept else _norms_read_by_adapter(shape, recipe)
    outputs = float(read * wide * hidden)
    if learns and recipe.autocasts and not recipe.compiled:
        # Norms and their outputs are fp32, and each projection casts its input for itself: autocast caches casts of
        # weights only (aten/src/ATen/autocast_mode.cpp, cached_cast).
        outputs = shape.readers * wide * hidden
    is_modulated = recipe.fuses_norms or not shape.rms_norm
    return shape.norms * _norm(shape, recipe) + outputs + (shape.modulation * wide * hidden if is_modulated else 0)


def _norm(shape: Shape, recipe: Recipe) -> int:
    """Bytes per token that one norm keeps beside its output."""
    wide, hidden = recipe.compute_bytes, shape.hidden
    kept = 4 if recipe.autocasts and not recipe.compiled else wide
    if recipe.fuses_norms or not shape.rms_norm:
        # Fused: the residual, and no normalised copy of it.
        return kept * hidden
    # Eager RMSNorm upcasts to fp32 and keeps that copy; a trainable scale keeps the normalised input too. T5's scales
    # what it did not upcast (modeling_t5.py, T5LayerNorm), and keeps that as well.
    own = wide * hidden if shape.scales_as_is and wide == kept < _FP32 else 0
    learns = not shape.has_adapter or recipe.mixes_units
    return 4 * hidden + (kept * hidden if learns else 0) + own


def _norms_read_by_adapter(shape: Shape, recipe: Recipe) -> int:
    """The norms of a layer whose output an adapter keeps: that before attention, and that before the feed-forward."""
    if _own_input_bytes(shape, recipe) or not shape.adapted:
        return 0
    if shape.modulated:
        # Whether what scales and shifts a norm's output keeps it was never emulated.
        return shape.norms
    readers = ({"query", "key", "value"}, {"gate", "up"})
    return min(sum(not shape.adapted.isdisjoint(roles) for roles in readers), shape.norms)


def _attention(shape: Shape, recipe: Recipe) -> float:
    wide, query = recipe.compute_bytes, shape.query
    kept: float = wide * (2 * query + 2 * _keys(shape, recipe)) + 4 * shape.heads
    if shape.query_key_norm:
        # A fused norm keeps its input; an eager RMSNorm keeps it in fp32 and, for a scale that learns, the normalised
        # result.
        scaled = 0 if shape.has_adapter and not recipe.mixes_units else wide
        each = wide if recipe.fuses_norms or not shape.rms_norm else 4 + scaled
        kept += each * (query + shape.key_value)
    if recipe.attention is Attention.EAGER:
        scores = shape.heads * recipe.sequence_length / recipe.context_parallel
        # A softmax in fp32 keeps its result beside the narrowed one of the next product; dropout's takes the latter's
        # place, and adds a mask. One that is written out keeps exponentials, and its quotient for the next product.
        widened = _FP32 if wide < _FP32 and recipe.upcasts_scores else wide if recipe.writes_softmax else 0
        dropped = (1 + (0 if widened else wide)) if shape.attention_dropout else 0
        # A tanh keeps its output; scaling by the cap, before and after, keeps nothing.
        capped = wide if shape.attention_softcap and not recipe.compiled else 0
        kept += scores * (wide + widened + dropped + capped)
    return kept


def _keys(shape: Shape, recipe: Recipe) -> int:
    """Eager code repeats keys and values to the number of query heads; flash kernels share them."""
    return shape.key_value if recipe.attention is Attention.FLASH else shape.query


def _mlp(shape: Shape, recipe: Recipe) -> float:
    wide = recipe.compute_bytes
    # Before and after the activation; if gated, also the other factor and the product, the input of the down
    # projection. A compiled layer recomputes the activation, as Liger's kernel does (ops/swiglu.py); a frozen down
    # projection needs no input.
    activation = 1 + (not shape.gated) if recipe.fuses_activation else shape.activation_tensors
    tensors = activation + (2 if shape.gated else 0)
    by_adapter = "down" in shape.adapted and not _own_input_bytes(shape, recipe)
    needs_input = by_adapter or recipe.fp32_residuals or recipe.keeps_frozen_inputs
    if shape.has_adapter and not needs_input:
        tensors -= 1
    routed = 2 * wide * shape.hidden * shape.expert_copies
    widened = 0
    if recipe.autocasts and activation == _TENSORS_OF_A_CUBE and not recipe.virtual:
        # Autocast computes a power and its results in fp32 (ATen/autocast_mode.h): the power's input, the tanh, one
        # plus it, and what a gate multiplies. The input of the down projection is cast back. On a CPU, which computes
        # for a virtual GPU, autocast leaves powers as they are.
        widened = (3 + shape.gated) * (4 - wide)
    return (wide * tensors + widened) * shape.ffn + routed


def _own_input_bytes(shape: Shape, recipe: Recipe) -> int:
    """Bytes that each module of an adapter keeps per input element, unless it shares the layer's own.

    Dropout makes another tensor for each module, and a mask of one byte. Under autocast a fp32 adapter reads a cast
    input, dropped or not, and its product casts that back for itself (peft tuners/lora/layer.py, Linear); beside a
    quantized base it reads the input as it is (peft tuners/lora/bnb.py, Linear4bit and Linear8bitLt). Without autocast
    its product keeps the cast input.
    """
    is_dropped = shape.adapter_dropout > 0
    is_cast = recipe.autocasts and recipe.base_bytes == recipe.frozen_bytes
    if not shape.has_adapter or recipe.compiled or not (is_dropped or is_cast or recipe.widens_inputs):
        return 0
    return (_FP32 if recipe.widens_inputs else recipe.compute_bytes) + is_dropped


def _masks(shape: Shape) -> float:
    """One byte per element of each dropout: after attention and after the feed-forward (2205.05198)."""
    return 2.0 * shape.hidden if shape.hidden_dropout else 0.0


def selective_bytes(shape: Shape, recipe: Recipe) -> float:
    """Bytes per token that a layer keeps if only every second matrix product and the attention are kept.

    The operator policy of torchtitan (parallelize_llama.py, apply_ac): of q, k, v, o, gate, up, down it keeps the
    first, third, fifth and seventh, and the attention's output.
    """
    wide = recipe.compute_bytes
    products = shape.query + shape.key_value + shape.ffn + shape.hidden
    if shape.has_adapter:
        products = sum(_products(shape, recipe)[::2])
    return wide * (products + shape.query) + boundary_bytes(shape, recipe) + 4 * shape.heads


def _products(shape: Shape, recipe: Recipe) -> list[int]:
    """Output sizes of a layer's matrix products, in order: an adapter adds a narrow one and one as wide as its own.

    That of a quantized weight is an operation of its library's, which selective checkpointing does not know
    (bitsandbytes autograd/_functions.py, MatMul4Bit and MatMul8bitLt).
    """
    sizes = {
        "query": shape.query,
        "key": shape.key_value,
        "value": shape.key_value,
        "output": shape.hidden,
        **({"gate": shape.ffn} if shape.gated else {}),
        "up": shape.ffn,
        "down": shape.hidden,
    }
    is_quantized = recipe.base_bytes < recipe.frozen_bytes
    own = {role: [] if is_quantized else [size] for role, size in sizes.items()}
    return [
        each for role, size in sizes.items() for each in (*own[role], *((0, size) if role in shape.adapted else ()))
    ]


def _selective_cross_bytes(shape: Shape, recipe: Recipe) -> float:
    """The same policy for cross-attention: of its q, k, v, o it keeps q and v, and the attention's output."""
    return recipe.compute_bytes * (2 * shape.query + shape.key_value) + 4 * shape.heads


def activation_terms(shape: Shape, recipe: Recipe, constants: Constants) -> list[Term]:
    """Kept activations, and the layer being recomputed and differentiated: the larger of two stacks."""
    if not (shape.crossed and recipe.target_length):
        return _activation_terms(shape, recipe, constants)
    biased = shape.biased_stacks // 2
    encoder_shape = replace(
        shape, layers=shape.layers - shape.crossed, crossed=0, biased_stacks=biased, final_norm=False
    )
    encoder = _activation_terms(encoder_shape, recipe, constants)
    decoder = _activation_terms(replace(shape, layers=shape.crossed, biased_stacks=biased), recipe.decoder, constants)
    # The encoder's layers, whose gradients are the last, are the first.
    last = _within(encoder, (FIRST_LAYER,))
    encoder, decoder = _within(encoder, _BEFORE), _within(decoder, _BEFORE)
    kept = [term for term in (*encoder, *decoder) if term.name != _LIVE]
    live = max(encoder, decoder, key=lambda terms: sum(term.bytes for term in terms if term.name == _LIVE))
    return [*kept, *(term for term in live if term.name == _LIVE), *last]


def _within(terms: Sequence[Term], phases: tuple[int, ...]) -> list[Term]:
    cut = (term._replace(phases=tuple(phase for phase in term.phases if phase in phases)) for term in terms)
    return [term for term in cut if term.phases]


def _activation_terms(shape: Shape, recipe: Recipe, constants: Constants) -> list[Term]:
    """Kept activations, and the layer that is being recomputed and differentiated."""
    tokens = recipe.tokens / recipe.tensor_parallel
    # 1F1B keeps as many micro-batches in flight as there are stages, so pipelining does not shrink activations.
    # Traces and emulated runs of transformers' models show no tensor beside these.
    factor = 1.0 if recipe.counts_layers else constants.activation_factor
    whole = factor * layer_bytes(shape, recipe).total
    crossing = factor * cross_bytes(shape, recipe).total if shape.crossed else 0.0
    kept, kept_crossing, live = _kept_and_live(shape, recipe, whole, crossing)
    first = min(recipe.recomputed_layers, shape.layers)
    terms = [
        _kept_term(shape, recipe, kept, tokens, shape.layers),
        _kept_term(shape, recipe, kept, tokens, first)._replace(phases=(FIRST_LAYER,)),
    ]
    if shape.biased_stacks:
        terms += _position_biases(shape, recipe)
    if shape.crossed:
        terms += _between_stacks(shape, recipe, kept_crossing, tokens)
    if live:
        template = "{:,.0f} B a token x {:,.0f} tokens recomputed at once"
        # The first layer is an encoder's, which has no cross-attention.
        _, _, last = _kept_and_live(shape, recipe, whole, 0.0)
        parts = [(live, (BACKWARD, FIRST_LAYER))] if live == last else [(live, (BACKWARD,)), (last, (FIRST_LAYER,))]
        terms += [Term(_LIVE, each * tokens, phases, template, (each, tokens), _SAVED, True) for each, phases in parts]
    return [*terms, *_final_norm(shape, recipe, tokens), _gradients_inside(shape, recipe, constants, tokens)]


def _final_norm(shape: Shape, recipe: Recipe, tokens: float) -> list[Term]:
    """What the norm after the last layer keeps, and its output, until the head's gradient is there.

    In an encoder-decoder that is the decoder's; the encoder's output is counted with what is between the stacks.
    """
    if not shape.final_norm:
        return []
    each = final_norm_bytes(shape, recipe)
    template, values = "{:,.0f} B a token of the last norm x {:,.0f} tokens", (each, tokens)
    return [Term("activations", each * tokens, (FORWARD, LOSS), template, values, _SAVED, True)]


def final_norm_bytes(shape: Shape, recipe: Recipe) -> float:
    """Bytes per token that the last norm keeps, and its output, which a head that learns keeps as its input."""
    output = 0 if shape.has_adapter and not recipe.keeps_frozen_inputs else recipe.compute_bytes * shape.hidden
    return float(_norm(shape, recipe) + output)


def _gradients_inside(shape: Shape, recipe: Recipe, constants: Constants, tokens: float) -> Term:
    """The gradients inside a layer: of its feed-forward or, if attention computes scores, of those."""
    width = max(shape.ffn, shape.hidden)
    # Liger writes the gradients of gate and up into what they were computed from (ops/swiglu.py, swiglu_backward).
    factor = 1.0 if recipe.liger_layers else constants.backward_factor
    size, phases = factor * recipe.compute_bytes * width * tokens, REDUCING
    values: tuple[object, ...] = (factor, recipe.compute_bytes, width, tokens)
    template = "{:.3g} x {} B x {} x {:,.0f} tokens of gradients inside a layer"
    scores = _score_gradient_bytes(recipe) * shape.heads * recipe.sequence_length / recipe.context_parallel * tokens
    ring = _ring_bytes(shape, recipe) * tokens
    if ring > max(scores, size):
        template = (
            "{:,.0f} B a token x {:,.0f} tokens of keys, values and gradients in a ring, less what is free by then"
        )
        return Term(_LIVE, ring, phases, template, (ring / tokens, tokens), _RING, True)
    if scores <= size:
        return Term(_LIVE, size, phases, template, values, "derived", True)
    values = (_score_gradient_bytes(recipe), shape.heads, recipe.sequence_length, tokens)
    template, source = "{} B x {} heads x {} scores x {:,.0f} tokens of gradients inside a layer", "aten SoftMax.cu"
    return Term(_LIVE, scores, phases, template, values, source, True)


def _ring_bytes(shape: Shape, recipe: Recipe) -> float:
    """Bytes per token in the backward pass of torch's ring attention, less what the feed-forward has freed before.

    Every rank gathers all keys and values of the sequence, adds up gradients in fp32, and sends those of keys and
    values around: emulated backward passes of an attention with 4 to 16 heads of keys, on a middle one of 4 and 8
    ranks.
    """
    if not recipe.gathers_keys:
        return 0.0
    keys = 2 * _keys(shape, recipe)
    gathered = recipe.compute_bytes * recipe.context_parallel
    return 18.0 * shape.query + (17 + gathered) * keys - _mlp(shape, recipe)


def _score_gradient_bytes(recipe: Recipe) -> int:
    """Bytes per score in the backward of a softmax beside its output: incoming and outgoing gradient.

    On a GPU also the product of output and gradient. The copy that the next product kept beside an fp32 output is freed
    by then.
    """
    if recipe.attention is not Attention.EAGER or recipe.compiled:
        return 0
    tensors = 2 if recipe.virtual else 3
    is_widened = recipe.compute_bytes < _FP32 and recipe.upcasts_scores
    return 4 * tensors - 2 if is_widened else recipe.compute_bytes * tensors


def boundary_bytes(shape: Shape, recipe: Recipe) -> float:
    """The hidden state between two layers, per token: all that full checkpointing keeps.

    Under autocast a fp32 embedding starts it, and adding half precision keeps it fp32; a diffusion transformer starts
    with a projection.
    """
    is_cast = recipe.casts_base if shape.has_adapter else recipe.autocasts
    is_wide = recipe.fp32_residuals or (is_cast and not shape.modulated)
    return float((4 if is_wide else recipe.compute_bytes) * shape.hidden)


def _kept_and_live(shape: Shape, recipe: Recipe, whole: float, crossing: float) -> tuple[float, float, float]:
    """Bytes per token kept through the forward, of a layer and of its cross-attention, and those recomputed at once.

    In an encoder-decoder the recomputed layer is a decoder's: they are larger, and recomputed first.
    """
    mode, boundary = recipe.checkpointing.mode, boundary_bytes(shape, recipe)
    if mode == "none":
        return whole, crossing, 0.0
    if mode == "selective":
        kept = min(selective_bytes(shape, recipe), whole)
        kept_crossing = min(_selective_cross_bytes(shape, recipe), crossing)
        return kept, kept_crossing, whole - kept + crossing - kept_crossing
    if recipe.checkpoints_half:
        return (boundary + whole) / 2, crossing / 2, whole + crossing
    every = min(recipe.recomputed_layers, shape.layers)
    return boundary / every, 0.0, (whole + crossing) * every


def _between_stacks(shape: Shape, recipe: Recipe, kept: float, tokens: float) -> list[Term]:
    """Activations of cross-attention, and the encoder output: every decoder layer reads it and adds to its gradient."""
    each = float(recipe.compute_bytes * shape.hidden)
    template, source = "{:,.0f} B a token of the encoder's {} x {:,.0f} tokens", "derived"
    source_tokens = recipe.source_tokens / recipe.tensor_parallel
    output, gradient = (each, "output", source_tokens), (each, "output's gradient", source_tokens)
    return [
        _kept_term(shape, recipe, kept, tokens, shape.crossed),
        Term("activations", each * source_tokens, (FORWARD, LOSS, BACKWARD), template, output, source, True),
        Term(_LIVE, each * source_tokens, (BACKWARD,), template, gradient, source, True),
    ]


def _position_biases(shape: Shape, recipe: Recipe) -> list[Term]:
    """Relative position biases of scores, shared by all rows.

    One per stack, joined with the mask of each layer that does not compute its scores (transformers sdpa_attention.py,
    create_position_bias_mask). In the backward pass a layer holds its own gradient beside the sum of the earlier ones.
    """
    each = float(recipe.compute_bytes * shape.heads * recipe.sequence_length**2) / recipe.context_parallel
    mode = recipe.checkpointing.mode
    layers = 0 if recipe.attention is Attention.EAGER else shape.layers
    again = min(recipe.recomputed_layers, layers)
    kept, first, live = shape.biased_stacks, 1, 2
    if mode == "none":
        kept, first = kept + layers, first + again
    else:
        live += again
    template, source = "{} x {:,.0f} B of biases by relative position", "transformers modeling_t5.py, compute_bias"
    return [
        Term("activations", kept * each, (FORWARD, LOSS, BACKWARD), template, (kept, each), source),
        Term("activations", first * each, (FIRST_LAYER,), template, (first, each), source),
        Term(_LIVE, live * each, (BACKWARD, FIRST_LAYER), template, (live, each), source),
    ]


def _kept_term(shape: Shape, recipe: Recipe, kept: float, tokens: float, layers: int) -> Term:
    size = kept * tokens * layers
    values = (kept, tokens, layers)
    template = "{:,.0f} B a token and layer x {:,.0f} tokens x {} layers"
    if recipe.offloads_activations:
        # Copies to the host run behind the computation: two layers' worth wait in HBM.
        size, template = size * min(2 / shape.layers, 1.0), template + ", of which two layers wait for the host link"
    return Term("activations", size, (FORWARD, LOSS, BACKWARD), template, values, _KORTHIKANTI, True)
