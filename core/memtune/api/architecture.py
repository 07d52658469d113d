"""`spec.model.architecture`: a transformer's dimensions by plain names, for `memtune.model.plain`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from memtune.api.fields import Count, Flag, Number, SpecBlock, Whole
from memtune.model.architecture import Kind

Layers = Annotated[Count, Field(le=10_000)]
Heads = Annotated[Count, Field(le=100_000)]
Size = Annotated[Count, Field(le=100_000_000)]
SizeOrNone = Annotated[Whole, Field(ge=0, le=100_000_000)]
Probability = Annotated[Number, Field(ge=0, lt=1)]


class ExpertFacts(SpecBlock):
    """The mixture-of-experts feed-forward of a model."""

    count: Annotated[Count, Field(le=10_000)] = Field(description="Experts in one layer.")
    per_token: Annotated[Count, Field(le=10_000)] = Field(description="Experts that each token visits.")
    ffn_size: Size = Field(description="Width of the feed-forward of one expert.")
    shared_ffn_size: SizeOrNone = Field(
        default=0, description="Width of the feed-forward that every token visits too; 0 if there is none."
    )
    dense_layers: Annotated[Whole, Field(ge=0, le=10_000)] = Field(
        default=0, description="Layers that have an ordinary feed-forward instead of experts."
    )
    gated_shared: Flag = Field(default=False, description="Whether a gate weighs the shared feed-forward.")


class ImageFacts(SpecBlock):
    """The input of a vision transformer."""

    size: Size = Field(description="Pixels along one edge of the square image.")
    patch_size: Size = Field(description="Pixels along one edge of a patch.")
    channels: Annotated[Count, Field(le=1000)] = Field(default=3, description="Colour channels of the image.")


class ArchitectureFacts(SpecBlock):
    """A transformer by plain names."""

    kind: Kind = Field(default=Kind.DECODER, description="Shape of the whole model.")
    hidden_size: Size = Field(description="Width of the residual stream.")
    layers: Layers = Field(description="Layers of the main stack.")
    encoder_layers: Annotated[Whole, Field(ge=0, le=10_000)] = Field(
        default=0, description="Layers of the encoder of an encoder-decoder."
    )
    heads: Heads = Field(description="Attention heads of one layer.")
    kv_heads: Heads | None = Field(
        default=None, description="Key and value heads of one layer; as many as heads if left out."
    )
    head_dim: Size | None = Field(default=None, description="Width of one head; hiddenSize / heads if left out.")
    ffn_size: Size | None = Field(
        default=None, description="Width of the feed-forward of one layer; required unless every layer has experts."
    )
    vocab_size: Size | None = Field(
        default=None, description="Rows of the token embedding; required unless kind is vision."
    )
    gated_ffn: Flag = Field(default=True, description="Whether the feed-forward has a gate: three matrices, not two.")
    norm: Literal["rmsnorm", "layernorm"] = Field(default="rmsnorm", description="Kind of normalization.")
    norms_per_layer: Annotated[Count, Field(le=16)] = Field(default=2, description="Normalizations of one layer.")
    final_norm: Flag = Field(default=True, description="Whether the last layer is followed by a normalization.")
    query_key_norm: Flag = Field(default=False, description="Whether queries and keys are normalized.")
    qkv_bias: Flag = Field(default=False, description="Whether the query, key and value projections have a bias.")
    attention_output_bias: Flag = Field(default=False, description="Whether the attention's output has a bias.")
    ffn_bias: Flag = Field(default=False, description="Whether the feed-forward has biases.")
    tied_embeddings: Flag = Field(default=False, description="Whether the output head shares the token embedding.")
    embedding_size: SizeOrNone = Field(
        default=0, description="Width of the token embedding if it is not that of the residual stream; else 0."
    )
    embedding_norm: Flag = Field(default=False, description="Whether the embedding is normalized.")
    position_count: SizeOrNone = Field(default=0, description="Rows of a learned position embedding; 0 if none.")
    relative_position_buckets: SizeOrNone = Field(
        default=0, description="Buckets of a relative position bias; 0 if there is none."
    )
    token_type_count: SizeOrNone = Field(default=0, description="Rows of a token type embedding; 0 if none.")
    image: ImageFacts | None = Field(default=None, description="The input of a vision transformer.")
    experts: ExpertFacts | None = Field(default=None, description="The mixture of experts; a dense model if left out.")
    pooler: Flag = Field(default=False, description="Whether a pooler follows the last layer.")
    head: Literal["language-model", "masked-language-model", "classifier", "none"] | None = Field(
        default=None,
        description="The head after the last layer; language-model if left out, none for kinds encoder and vision.",
    )
    head_bias: Flag = Field(default=False, description="Whether the output head has a bias.")
    label_count: SizeOrNone = Field(default=0, description="Classes of a classifier; 0 for every other head.")
    hidden_dropout: Probability = Field(default=0.0, description="Dropout probability of hidden states.")
    attention_dropout: Probability = Field(default=0.0, description="Dropout probability of attention scores.")
