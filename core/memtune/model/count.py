"""The linear modules of a model, and exact parameter counts: per component, of an adapter, of the quantizable part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memtune.model.architecture import Adapter, Architecture, Experts, Head, Kind

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class ParameterCounts:
    """Exact parameter counts per component. ``layer`` is one layer of the main stack.

    ``dense_layers`` of the ``layers`` of a mixture of experts have ``dense_layer`` each. ``active_layer`` is what one
    token visits of ``layer``. ``head`` is 0 if its matrix is the embedding's and it has nothing else. ``tower`` is a
    vision tower with its projector, which text does not visit.
    """

    embedding: int
    layer: int
    layers: int
    encoder_layer: int
    encoder_layers: int
    final: int
    head: int
    active_layer: int
    dense_layer: int = 0
    dense_layers: int = 0
    tower: int = 0

    @property
    def total(self) -> int:
        """All parameters, tied ones once."""
        main = self.layer * (self.layers - self.dense_layers) + self.dense_layer * self.dense_layers
        encoder = self.encoder_layer * self.encoder_layers
        return self.embedding + main + encoder + self.final + self.head + self.tower

    @property
    def active(self) -> int:
        """The parameters that one text token visits: all except other experts and a vision tower."""
        return self.total - self.tower - (self.layer - self.active_layer) * (self.layers - self.dense_layers)


def parameters(architecture: Architecture) -> ParameterCounts:
    """Count every parameter of the model, per component."""
    a = architecture
    main = main_layer(a)
    crosses = a.kind is Kind.ENCODER_DECODER
    rest = _norms(a, a.norms_per_layer + (1 if crosses else 0)) + _query_key_norms(a)
    dense_layers = a.experts.dense_layers if a.experts else 0
    return ParameterCounts(
        embedding=_embedding(a),
        layer=_sum(main) + rest,
        layers=a.layers,
        encoder_layer=_sum(encoder_layer(a)) + _norms(a, a.norms_per_layer) if crosses else 0,
        encoder_layers=a.encoder_layers,
        final=_final(a),
        head=_head(a),
        active_layer=sum(linear.parameters * linear.visited for linear in main) + rest,
        dense_layer=_sum(dense_layer(a)) + rest if dense_layers else 0,
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
    stacks = [(main_layer(a), a.layers - dense_layers)]
    if dense_layers:
        stacks.append((dense_layer(a), dense_layers))
    if a.kind is Kind.ENCODER_DECODER:
        stacks.append((encoder_layer(a), a.encoder_layers))
    stacks.append(([*outside_layers(a), *head_transform(a)], 1))
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
    return _norms(a, norms) + _sum(outside_layers(a))


def _head(architecture: Architecture) -> int:
    a = architecture
    if a.head is Head.NONE:
        return 0
    inputs = a.embedding_size or a.hidden_size
    if a.head is Head.CLASSIFIER:
        return (inputs + (1 if a.head_bias else 0)) * a.label_count
    matrix = 0 if a.tied_embeddings else a.vocab_size * inputs
    norm = _norms(a, 1) if a.head is Head.MASKED_LANGUAGE_MODEL else 0
    return matrix + _sum(head_transform(a)) + norm + (a.vocab_size if a.head_bias else 0)


@dataclass(frozen=True)
class Linear:
    """One linear module; ``copies`` of it are in a layer, of which a token visits ``visited``."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    copies: int = 1
    visited: int = 1

    @property
    def weights(self) -> int:
        """The matrix of one copy, without its bias."""
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """One copy with its bias."""
        return self.weights + (self.outputs if self.bias else 0)


def main_layer(architecture: Architecture) -> list[Linear]:
    """One layer of the main stack; in a mixture of experts, a layer with experts."""
    experts = architecture.experts
    ffn = _ffn(architecture) if experts is None else _experts(architecture, experts)
    return [*_all_attention(architecture), *ffn]


def dense_layer(architecture: Architecture) -> list[Linear]:
    """One layer with a plain feed-forward, such as some layers of a mixture of experts."""
    return [*_all_attention(architecture), *_ffn(architecture)]


def encoder_layer(architecture: Architecture) -> list[Linear]:
    """One layer of the encoder of an encoder-decoder."""
    return [*_attention(architecture, architecture.module_names.attention), *_ffn(architecture)]


def outside_layers(architecture: Architecture) -> list[Linear]:
    """The linear modules around the stack, except the head's."""
    hidden, embedding = architecture.hidden_size, architecture.embedding_size
    found = []
    if embedding not in (0, hidden):
        found += [Linear("project_in", embedding, hidden), Linear("project_out", hidden, embedding)]
    if architecture.pooler:
        found.append(Linear(architecture.module_names.pooler, hidden, hidden, bias=True))
    return found


def head_transform(architecture: Architecture) -> list[Linear]:
    """The linear modules of the head before its output matrix."""
    if architecture.head is not Head.MASKED_LANGUAGE_MODEL:
        return []
    hidden = architecture.hidden_size
    return [Linear(architecture.module_names.transform, hidden, hidden, bias=True)]


def _all_attention(architecture: Architecture) -> list[Linear]:
    names = architecture.module_names
    crosses = architecture.kind is Kind.ENCODER_DECODER
    cross = _attention(architecture, names.cross_attention) if crosses else []
    return [*_attention(architecture, names.attention), *cross]


def _attention(architecture: Architecture, prefix: str) -> list[Linear]:
    a, names = architecture, architecture.module_names
    hidden, inner, kv = a.hidden_size, a.heads * a.head_dim, a.kv_heads * a.head_dim
    return _fused(
        [
            Linear(_path(prefix, names.query), hidden, inner, a.qkv_bias),
            Linear(_path(prefix, names.key), hidden, kv, a.qkv_bias),
            Linear(_path(prefix, names.value), hidden, kv, a.qkv_bias),
            Linear(_path(prefix, names.output), inner, hidden, a.attention_output_bias),
        ]
    )


def _ffn(architecture: Architecture) -> list[Linear]:
    return _feed_forward(architecture, architecture.module_names.ffn, architecture.ffn_size)


def _feed_forward(architecture: Architecture, prefix: str, size: int) -> list[Linear]:
    hidden, bias, names = architecture.hidden_size, architecture.ffn_bias, architecture.module_names
    gate = [Linear(_path(prefix, names.gate), hidden, size, bias)] if architecture.gated_ffn else []
    up = Linear(_path(prefix, names.up), hidden, size, bias)
    return _fused([*gate, up, Linear(_path(prefix, names.down), size, hidden, bias)])


def _experts(architecture: Architecture, experts: Experts) -> list[Linear]:
    hidden, ffn = architecture.hidden_size, architecture.module_names.ffn
    found = [Linear(_path(ffn, "gate"), hidden, experts.count)]
    one_expert = _feed_forward(architecture, _path(ffn, "experts"), experts.ffn_size)
    found += [replace(linear, copies=experts.count, visited=experts.per_token) for linear in one_expert]
    if experts.shared_ffn_size:
        found += _feed_forward(architecture, _path(ffn, "shared_expert"), experts.shared_ffn_size)
    if experts.gated_shared:
        found.append(Linear(_path(ffn, "shared_expert_gate"), hidden, 1))
    return found


def _path(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _fused(linears: list[Linear]) -> list[Linear]:
    """Join neighbours of one name: a fused module reads the same input once and has all their outputs."""
    joined: list[Linear] = []
    for linear in linears:
        if joined and joined[-1].name == linear.name:
            joined[-1] = replace(joined[-1], outputs=joined[-1].outputs + linear.outputs)
        else:
            joined.append(linear)
    return joined
