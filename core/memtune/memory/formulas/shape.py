"""The numbers of a model that the formulas use, worked out once per workload."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from memtune.model import linears
from memtune.model.architecture import Adapter, Architecture, Head, Kind
from memtune.model.count import ALL_LINEAR, adapter_parameters, adapter_reads, parameters, quantizable_parameters

if TYPE_CHECKING:
    from memtune.memory.replay.traced import TracedModel


@dataclass(frozen=True)
class Shape:
    """Sizes of one layer in elements per token, and parameter counts of the whole model.

    ``layers`` are those of all stacks, ``crossed`` of them have cross-attention. Each of ``biased_stacks`` biases
    every score by its relative position. ``layer`` is the largest layer in parameters. ``vocab`` is what the head makes
    of a token; a classifier's few labels are left out. ``readers`` are the projections that read the norms' outputs.
    ``has_adapter`` is whether the base is frozen and only an adapter learns, which may be larger than its base. Its
    modules read ``adapter_reads`` elements in a layer, and ``crossing_reads`` in the cross-attention of one.
    """

    hidden: int
    layers: int
    heads: int
    query: int
    key_value: int
    ffn: int
    expert_copies: int
    gated: bool
    norms: int
    rms_norm: bool
    vocab: int
    hidden_dropout: float
    attention_dropout: float
    root: int
    layer: int
    total: int
    active: int
    trainable: int
    quantizable: int
    quantization: str
    has_adapter: bool
    adapted: frozenset[str]
    adapter_reads: int = 0
    crossing_reads: int = 0
    adapter_dropout: float = 0.0
    modulated: bool = False
    crossed: int = 0
    activation_tensors: int = 2
    readers: int = 5
    query_key_norm: bool = False
    ffn_dropout: float = 0.0
    biased_stacks: int = 0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0

    @property
    def modulation(self) -> int:
        """Hidden-sized tensors a layer of a diffusion transformer keeps for its adaptive norms, gates and q/k norms.

        Two normalised inputs before scale and shift, two gated outputs, q and k before their norms (2212.09748,
        section 3.2; diffusers transformers/cogvideox_transformer_3d.py).
        """
        return 6 if self.modulated else 0

    @property
    def attentions(self) -> int:
        """The attention blocks of all layers; the cross-attention of a layer is one more."""
        return self.layers + self.crossed

    @property
    def cached_layers(self) -> int:
        """The layers that generation caches keys and values of: an encoder runs once and needs none."""
        return self.crossed or self.layers

    @property
    def outside(self) -> int:
        """The parameters outside of the repeated blocks that learn; an adapter has none there."""
        return 0 if self.has_adapter else self.root

    @property
    def largest_linear(self) -> int:
        """The elements of the largest matrix of a layer, which a quantized layer unpacks to use."""
        return self.hidden * max(self.ffn // max(self.expert_copies, 1), self.query)


def shape_of(architecture: Architecture | TracedModel, adapter: Adapter | None) -> Shape:
    """Work the numbers of a model out."""
    if not isinstance(architecture, Architecture):
        return architecture.shape
    a, counted = architecture, parameters(architecture)
    layers = counted.layers + counted.encoder_layers
    root = counted.embedding + counted.final + counted.head
    routed = a.experts.per_token if a.experts else 0
    ffn = a.experts.ffn_size * routed + a.experts.shared_ffn_size if a.experts else a.ffn_size
    reads, crossing_reads = _reads(a, adapter) if adapter else (0, 0)
    return Shape(
        hidden=a.hidden_size,
        layers=layers,
        heads=a.heads,
        query=a.heads * a.head_dim,
        key_value=a.kv_heads * a.head_dim,
        ffn=ffn,
        expert_copies=routed,
        gated=a.gated_ffn,
        norms=a.norms_per_layer,
        rms_norm=a.rms_norm,
        vocab=a.vocab_size if a.head in (Head.LANGUAGE_MODEL, Head.MASKED_LANGUAGE_MODEL) else 0,
        hidden_dropout=a.hidden_dropout,
        attention_dropout=a.attention_dropout,
        root=root,
        layer=max(counted.layer, counted.encoder_layer),
        total=counted.total,
        active=counted.active,
        trainable=adapter_parameters(a, adapter) if adapter else counted.total,
        quantizable=quantizable_parameters(a) + (counted.head if adapter and adapter.quantized_head else 0),
        quantization=adapter.base_quantization if adapter else "none",
        has_adapter=adapter is not None,
        adapted=_adapted(a, adapter) if adapter else frozenset(),
        adapter_reads=reads,
        crossing_reads=crossing_reads,
        adapter_dropout=adapter.dropout if adapter else 0.0,
        crossed=counted.layers if a.kind is Kind.ENCODER_DECODER else 0,
        activation_tensors=a.activation_tensors,
        readers=_readers(a),
        query_key_norm=a.query_key_norm,
        ffn_dropout=a.ffn_dropout,
        biased_stacks=(2 if a.kind is Kind.ENCODER_DECODER else 1) if a.relative_position_buckets else 0,
        attention_softcap=a.attention_softcap,
        logit_softcap=a.logit_softcap,
    )


def _readers(architecture: Architecture) -> int:
    names = architecture.module_names
    fed = (names.gate, names.up) if architecture.gated_ffn else (names.up,)
    return len({names.query, names.key, names.value}) + len(set(fed))


def _reads(architecture: Architecture, adapter: Adapter) -> tuple[int, int]:
    """What adapters read in a layer, and in its cross-attention where it has one."""
    whole = adapter_reads(linears.main_layer(architecture), adapter)
    if architecture.kind is not Kind.ENCODER_DECODER:
        return whole, 0
    without = adapter_reads(linears.encoder_layer(architecture), adapter)
    return without, whole - without


def _adapted(architecture: Architecture, adapter: Adapter) -> frozenset[str]:
    """Which projections an adapter sits on: each keeps its input for the adapter's own gradient."""
    names = architecture.module_names
    roles = [f.name for f in fields(names) if f.name in ("query", "key", "value", "output", "gate", "up", "down")]
    return frozenset(
        role
        for role in roles
        for target in adapter.targets
        if target == ALL_LINEAR or f".{getattr(names, role)}".endswith(f".{target}")
    )
