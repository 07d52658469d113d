"""The facts of a model that decide what a training step costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """The shape of the whole model."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder-decoder"
    VISION = "vision"


@dataclass(frozen=True)
class Experts:
    """A mixture-of-experts feed-forward: ``count`` experts of which each token visits ``per_token``."""

    count: int
    per_token: int
    ffn_size: int
    shared_ffn_size: int = 0
    dense_layers: int = 0


@dataclass(frozen=True)
class Architecture:
    """A transformer by plain facts. ``layers`` is the main stack; an encoder-decoder has ``encoder_layers`` too."""

    name: str
    kind: Kind
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    gated_ffn: bool = True
    rms_norm: bool = True
    tied_embeddings: bool = False
    encoder_layers: int = 0
    experts: Experts | None = None
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter on a frozen base, which may be quantized (``none``, ``int8`` or ``nf4``)."""

    rank: int
    targets: tuple[str, ...]
    base_quantization: str = "none"


@dataclass(frozen=True)
class Parameters:
    """Exact parameter counts per component. ``layer`` is one layer of the main stack."""

    embedding: int
    layer: int
    layers: int
    encoder_layer: int
    encoder_layers: int
    final: int
    head: int
    active_layer: int

    @property
    def total(self) -> int:
        """All parameters, tied ones once."""
        stacks = self.layer * self.layers + self.encoder_layer * self.encoder_layers
        return self.embedding + stacks + self.final + self.head
