"""`Shape`: the dimensions of a model that the formulas use, computed once per workload."""

from __future__ import annotations

from dataclasses import dataclass, fields

from memtune.memory.traced_model import TracedModel
from memtune.model.architecture import Adapter, Architecture, Head, Kind
from memtune.model.count import (
    ALL_LINEAR,
    adapter_parameters,
    adapter_reads,
    encoder_layer,
    main_layer,
    parameters,
    quantizable_parameters,
)
from memtune.wire import trace as events
from memtune.wire.trace import Trace


@dataclass(frozen=True)
class Shape:
    """Sizes of one layer in elements per token, and parameter counts of the whole model.

    ``layers`` are those of all stacks; ``crossed`` of them have cross-attention. Each of ``biased_stacks`` biases every
    score by its relative position. ``layer`` is the largest layer in parameters. ``vocab`` is the head's output per
    token; a classifier's few labels are ignored. ``multiplied`` are the active parameters without embeddings and head,
    which a trace does not tell apart. ``readers`` are the projections that read the norms' outputs. ``has_adapter``
    says that the base is frozen and only an adapter is trained, which may be larger than its base. Its modules read
    ``adapter_reads`` elements in a layer, and ``crossing_reads`` in its cross-attention.
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
    multiplied: int
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
    scales_as_is: bool = False
    final_norm: bool = False

    @property
    def modulation(self) -> int:
        """Hidden-sized tensors that a diffusion transformer layer keeps for its adaptive norms, gates and q/k norms.

        Two normalised inputs before scale and shift, two gated outputs, q and k before their norms (2212.09748, section
        3.2; diffusers transformers/cogvideox_transformer_3d.py).
        """
        return 6 if self.modulated else 0

    @property
    def attentions(self) -> int:
        """The attention blocks of all layers; a layer's cross-attention counts as one more."""
        return self.layers + self.crossed

    @property
    def cached_layers(self) -> int:
        """The layers whose keys and values generation caches: an encoder runs once and needs none."""
        return self.crossed or self.layers

    @property
    def first_layer_part(self) -> float:
        """The first layer's parameters as a part of ``layer``: an encoder's layer has no cross-attention."""
        if not self.crossed:
            return 1.0
        return ((self.total - self.root) / self.layer - self.crossed) / (self.layers - self.crossed)

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding: there is no room for a second table outside the layers."""
        return self.root < 2 * self.vocab * self.hidden

    @property
    def outside(self) -> int:
        """Trainable parameters outside the repeated blocks; an adapter has none there."""
        return 0 if self.has_adapter else self.root

    @property
    def largest_linear(self) -> int:
        """Elements of a layer's largest matrix, which a quantized layer dequantizes to use."""
        return self.hidden * max(self.ffn // max(self.expert_copies, 1), self.query)


def shape_of(model: Architecture | TracedModel, adapter: Adapter | None) -> Shape:
    """Compute the shape of a model."""
    if isinstance(model, TracedModel):
        return _traced_shape(model.trace)
    a, counted = model, parameters(model)
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
        multiplied=counted.active - root,
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
        scales_as_is=a.kind is Kind.ENCODER_DECODER and a.rms_norm,
        final_norm=a.final_norm,
    )


def _traced_shape(trace: Trace) -> Shape:
    """Sizes for the speed of a step: counted where the trace has them, else as of a usual block."""
    parameters, layers = trace.parameters, max(trace.blocks, 1)
    in_blocks = [0] * layers
    for each in parameters:
        if 0 <= each.block < layers:
            in_blocks[each.block] += each.elements
    total, learning = trace.total, sum(each.elements for each in parameters if each.learns)
    hidden, query = _traced_widths(trace)
    return Shape(
        hidden=hidden, layers=layers, heads=1, query=query, key_value=query, ffn=4 * hidden, expert_copies=0,
        gated=False, norms=2, rms_norm=False, vocab=0, hidden_dropout=0.0, attention_dropout=0.0,
        root=total - sum(in_blocks), layer=max(in_blocks), total=total, active=total, multiplied=total,
        trainable=learning, quantizable=0, quantization="none", has_adapter=learning < total, adapted=frozenset(),
    )  # fmt: skip


def _traced_widths(trace: Trace) -> tuple[int, int]:
    """Elements of a token between the blocks, and in attention."""
    name, program = next(iter(trace.programs.items()))
    token_bytes = max(trace.sequence_length, 1) * (4 if name == "full" else 2)
    between = [program.per_row[each] for group in program.inputs for each in group[-1:]]
    attended = [size for size, by in zip(program.per_row, program.made_by, strict=True) if by == events.ATTENTION]
    return max(between, default=0) // token_bytes, max(attended, default=0) // token_bytes


def _readers(architecture: Architecture) -> int:
    names = architecture.module_names
    fed = (names.gate, names.up) if architecture.gated_ffn else (names.up,)
    return len({names.query, names.key, names.value}) + len(set(fed))


def _reads(architecture: Architecture, adapter: Adapter) -> tuple[int, int]:
    """Input widths of the adapters in a layer, and in its cross-attention if any."""
    whole = adapter_reads(main_layer(architecture), adapter)
    if architecture.kind is not Kind.ENCODER_DECODER:
        return whole, 0
    without = adapter_reads(encoder_layer(architecture), adapter)
    return without, whole - without


def _adapted(architecture: Architecture, adapter: Adapter) -> frozenset[str]:
    """The projections with an adapter: each keeps its input for the adapter's gradient."""
    names = architecture.module_names
    roles = [f.name for f in fields(names) if f.name in ("query", "key", "value", "output", "gate", "up", "down")]
    return frozenset(
        role
        for role in roles
        for target in adapter.targets
        if target == ALL_LINEAR or f".{getattr(names, role)}".endswith(f".{target}")
    )
