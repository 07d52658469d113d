"""`Architecture`: the dimensions of a model that determine the cost of a training step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """The kind of transformer."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder-decoder"
    VISION = "vision"


class Head(str, Enum):
    """The module that turns the last hidden state into an output; ``none`` is the bare model."""

    LANGUAGE_MODEL = "language-model"
    MASKED_LANGUAGE_MODEL = "masked-language-model"
    CLASSIFIER = "classifier"
    NONE = "none"


@dataclass(frozen=True)
class Experts:
    """A mixture-of-experts feed-forward: ``count`` experts of which each token visits ``per_token``.

    Every token also visits the shared expert. ``dense_layers`` of the layers have one plain feed-forward instead.
    """

    count: int
    per_token: int
    ffn_size: int
    shared_ffn_size: int = 0
    dense_layers: int = 0
    gated_shared: bool = False


@dataclass(frozen=True)
class Image:
    """The input of a vision transformer: a square image cut into square patches, and a class token if it has one."""

    size: int
    patch_size: int
    channels: int = 3
    class_token: bool = True

    @property
    def tokens(self) -> int:
        """The sequence length: one token per patch, and the class token."""
        return (self.size // self.patch_size) ** 2 + self.class_token


@dataclass(frozen=True)
class ModuleNames:
    """A family's names for the linear modules of a layer; equal names are one fused module."""

    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    output: str = "o_proj"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    attention: str = "self_attn"
    cross_attention: str = "encoder_attn"
    ffn: str = "mlp"
    pooler: str = "pooler.dense"
    transform: str = "transform.dense"


@dataclass(frozen=True)
class Architecture:
    """A transformer's dimensions. ``layers`` is the main stack; an encoder-decoder has ``encoder_layers`` too.

    With ``makes_scores`` no kernel computes its attention. A tanh caps scores at ``attention_softcap`` and logits at
    ``logit_softcap``, unless these are 0. ``activation_tensors`` of the feed-forward's width are kept for the
    activation's backward pass, including its output, to which ``ffn_dropout`` may apply. Unless ``upcasts_loss``, its
    own loss uses the logits as they are, and unless ``upcasts_scores`` its own softmax the scores. ``tower`` turns
    images into tokens of the stack, through a projector.
    """

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
    qkv_bias: bool = False
    attention_output_bias: bool = False
    ffn_bias: bool = False
    norms_per_layer: int = 2
    query_key_norm: bool = False
    embedding_size: int = 0
    embedding_norm: bool = False
    position_count: int = 0
    relative_position_buckets: int = 0
    token_type_count: int = 0
    image: Image | None = None
    final_norm: bool = True
    pooler: bool = False
    head: Head = Head.LANGUAGE_MODEL
    head_bias: bool = False
    label_count: int = 0
    unquantized: tuple[str, ...] = ()
    activation_tensors: int = 2
    ffn_dropout: float = 0.0
    makes_scores: bool = False
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    upcasts_loss: bool = True
    upcasts_scores: bool = True
    module_names: ModuleNames = ModuleNames()
    tower: Architecture | None = None


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter on a frozen base, which may be quantized (``none``, ``int8`` or ``nf4``).

    ``dropout`` applies to the input of each of its modules. With ``quantized_head`` the output head is quantized, too.
    """

    rank: int
    targets: tuple[str, ...]
    base_quantization: str = "none"
    dropout: float = 0.0
    quantized_head: bool = False
