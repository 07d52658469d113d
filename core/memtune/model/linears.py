"""The linear modules of a model: adapter targets, what can be quantized, and nearly all of the parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memtune.model.architecture import Architecture, Experts, Head, Kind


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
