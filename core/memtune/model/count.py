"""Exact parameter counts: of a model per component, of a LoRA adapter, and of the quantizable part."""

from __future__ import annotations

from collections.abc import Sequence

from memtune.model import linears
from memtune.model.architecture import Adapter, Architecture, Head, Kind, ParameterCounts
from memtune.model.linears import Linear

ALL_LINEAR = "all-linear"


def parameters(architecture: Architecture) -> ParameterCounts:
    """Count every parameter of the model, per component."""
    a = architecture
    main = linears.main_layer(a)
    crosses = a.kind is Kind.ENCODER_DECODER
    rest = _norms(a, a.norms_per_layer + (1 if crosses else 0)) + _query_key_norms(a)
    dense_layers = a.experts.dense_layers if a.experts else 0
    return ParameterCounts(
        embedding=_embedding(a),
        layer=_sum(main) + rest,
        layers=a.layers,
        encoder_layer=_sum(linears.encoder_layer(a)) + _norms(a, a.norms_per_layer) if crosses else 0,
        encoder_layers=a.encoder_layers,
        final=_final(a),
        head=_head(a),
        active_layer=sum(linear.parameters * linear.visited for linear in main) + rest,
        dense_layer=_sum(linears.dense_layer(a)) + rest if dense_layers else 0,
        dense_layers=dense_layers,
        tower=_tower(a),
    )


def adapter_parameters(architecture: Architecture, adapter: Adapter) -> int:
    """The trainable parameters of a LoRA adapter: rank x (inputs + outputs) of every targeted module."""
    modules = _modules(architecture)
    for target in adapter.targets:
        if not any(_names(target, linear) for linear, _ in modules):
            known = sorted({linear.name.rpartition(".")[2] for linear, _ in modules})
            raise ValueError(
                f"adapter target {target!r} names no linear module of {architecture.name}; "
                f"use {ALL_LINEAR} or some of {', '.join(known)}"
            )
    return sum(
        adapter.rank * (linear.inputs + linear.outputs) * linear.copies * layers
        for linear, layers in modules
        if any(_names(target, linear) for target in adapter.targets)
    )


def adapter_reads(layer: Sequence[Linear], adapter: Adapter) -> int:
    """Elements per token that the adapter's modules read in a layer, each module separately."""
    adapted = (linear for linear in layer if any(_names(target, linear) for target in adapter.targets))
    return sum(linear.inputs * linear.visited for linear in adapted)


def quantizable_parameters(architecture: Architecture) -> int:
    """The parameters that int8 or nf4 quantizes: the matrices of the base's linear modules.

    Embeddings, norms, biases and the last module (the output head, or the pooler of a bare encoder) keep their dtype.
    """
    a = architecture
    kept = (*a.unquantized, a.module_names.pooler) if a.head is Head.NONE else a.unquantized
    return sum(
        linear.weights * linear.copies * layers
        for linear, layers in _modules(a)
        if not any(_names(name, linear) for name in kept)
    )


def _modules(architecture: Architecture) -> list[tuple[Linear, int]]:
    """Every linear module except the output head, with the number of layers that have it."""
    a = architecture
    dense_layers = a.experts.dense_layers if a.experts else 0
    stacks = [(linears.main_layer(a), a.layers - dense_layers)]
    if dense_layers:
        stacks.append((linears.dense_layer(a), dense_layers))
    if a.kind is Kind.ENCODER_DECODER:
        stacks.append((linears.encoder_layer(a), a.encoder_layers))
    stacks.append(([*linears.outside_layers(a), *linears.head_transform(a)], 1))
    found = [(linear, layers) for stack, layers in stacks for linear in stack]
    return found + (_modules(a.tower) if a.tower else [])


def _names(target: str, linear: Linear) -> bool:
    return target == ALL_LINEAR or f".{linear.name}".endswith(f".{target}")


def _sum(modules: list[Linear]) -> int:
    return sum(linear.parameters * linear.copies for linear in modules)


def _norms(architecture: Architecture, count: int) -> int:
    return count * architecture.hidden_size * _norm_width(architecture)


def _norm_width(architecture: Architecture) -> int:
    return 1 if architecture.rms_norm else 2  # a scale, and for LayerNorm a shift


def _query_key_norms(architecture: Architecture) -> int:
    if not architecture.query_key_norm:
        return 0
    return 2 * architecture.head_dim * _norm_width(architecture)


def _embedding(architecture: Architecture) -> int:
    a = architecture
    hidden = a.hidden_size
    tokens = a.vocab_size * (a.embedding_size or hidden)
    positions = (a.position_count + a.token_type_count) * hidden
    # Each stack of an encoder-decoder has its own table of relative positions.
    stacks = 2 if a.kind is Kind.ENCODER_DECODER else 1
    relative = a.relative_position_buckets * a.heads * stacks
    return tokens + positions + relative + _patches(a) + (_norms(a, 1) if a.embedding_norm else 0)


def _patches(architecture: Architecture) -> int:
    image, hidden = architecture.image, architecture.hidden_size
    if image is None:
        return 0
    convolution = (image.channels * image.patch_size**2 + 1) * hidden
    class_token, positions = hidden * image.class_token, image.tokens * hidden
    return convolution + class_token + positions


def _tower(architecture: Architecture) -> int:
    """A vision tower and its projector: a norm of the tower's width and a matrix that is not a module."""
    tower = architecture.tower
    if tower is None:
        return 0
    return parameters(tower).total + tower.hidden_size * (1 + architecture.hidden_size)


def _final(architecture: Architecture) -> int:
    a = architecture
    norms = (2 if a.kind is Kind.ENCODER_DECODER else 1) if a.final_norm else 0
    return _norms(a, norms) + _sum(linears.outside_layers(a))


def _head(architecture: Architecture) -> int:
    a = architecture
    if a.head is Head.NONE:
        return 0
    inputs = a.embedding_size or a.hidden_size
    if a.head is Head.CLASSIFIER:
        return (inputs + (1 if a.head_bias else 0)) * a.label_count
    matrix = 0 if a.tied_embeddings else a.vocab_size * inputs
    norm = _norms(a, 1) if a.head is Head.MASKED_LANGUAGE_MODEL else 0
    return matrix + _sum(linears.head_transform(a)) + norm + (a.vocab_size if a.head_bias else 0)
