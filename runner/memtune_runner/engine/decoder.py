"""A decoder built from architecture facts, with the parameters and computation that the predictor assumes."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memtune.model.architecture import Architecture, Experts, Head, Image, Kind, ModuleNames
from memtune.model.count import parameters
from memtune.plans.knobs import Attention
from memtune.plans.plan import FUSED_LOSS_CHUNKS
from memtune_runner.rank import applied_knobs

_ROTARY_BASE = 10_000.0
_RMS_EPSILON = 1e-6


def read_architecture(stored: dict[str, Any]) -> Architecture:
    """Parse ``MEMTUNE_ARCHITECTURE``: the fields of the dataclass, nested ones as objects."""
    nested: dict[str, Any] = {"experts": Experts, "image": Image, "module_names": ModuleNames}
    nested["tower"] = lambda **tower: read_architecture(tower)
    try:
        values = {
            name: nested[name](**value) if name in nested and value is not None else value
            for name, value in stored.items()
        }
        values |= {"kind": Kind(values["kind"]), "head": Head(values.get("head", Head.LANGUAGE_MODEL))}
        values["unquantized"] = tuple(values.get("unquantized", ()))  # JSON has only lists
        return Architecture(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the architecture cannot be read: {error}") from None


class Decoder(nn.Module):
    """Embedding, layers and head. Positions are learned if the facts have a table of them, otherwise rotary."""

    def __init__(self, facts: Architecture, attention: Attention = Attention.FLASH) -> None:
        super().__init__()
        if facts.kind is not Kind.DECODER or facts.head is not Head.LANGUAGE_MODEL:
            raise _refusal(facts, f"not {facts.kind.value} models with head {facts.head.value}")
        if facts.norms_per_layer not in (1, 2, 4):
            raise _refusal(facts, f"not {facts.norms_per_layer} norms in a layer")
        hidden, embedding = facts.hidden_size, facts.embedding_size or facts.hidden_size
        self.facts = facts
        self.tokens = nn.Embedding(facts.vocab_size, embedding)
        self.positions = nn.Embedding(facts.position_count, hidden) if facts.position_count else None
        self.project_in = nn.Linear(embedding, hidden, bias=False) if embedding != hidden else nn.Identity()
        self.embedding_norm = norm(facts) if facts.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(facts.hidden_dropout)
        self.layers = nn.ModuleList(Layer(facts, number, attention) for number in range(facts.layers))
        self.final_norm = norm(facts) if facts.final_norm else nn.Identity()
        self.project_out = nn.Linear(hidden, embedding, bias=False) if embedding != hidden else nn.Identity()
        self.head = nn.Linear(embedding, facts.vocab_size, bias=facts.head_bias)
        if facts.tied_embeddings:
            self.head.weight = self.tokens.weight
        if sum(each.numel() for each in self.parameters()) != parameters(facts).total:
            raise _refusal(
                facts, "not one with parts that belong to other kinds, such as a pooler, token types or a vision tower"
            )
        self.apply(_initialise)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Return the next token's logits at every position; with labels the mean loss, without all logits at once."""
        hidden = self._hidden(tokens)
        if labels is None:
            return self._logits(hidden)
        chunks = zip(
            hidden.flatten(0, 1).chunk(FUSED_LOSS_CHUNKS), labels.flatten().chunk(FUSED_LOSS_CHUNKS), strict=True
        )
        with applied_knobs.loss_in_parts():
            losses = [checkpoint(self._summed_loss, *chunk, use_reentrant=False) for chunk in chunks]
        return torch.stack(losses).sum() / labels.numel()

    def _summed_loss(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self._logits(hidden).float(), labels, reduction="sum")

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return _capped(self.head(hidden), self.facts.logit_softcap)

    def _hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.project_in(self.tokens(tokens))
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = self.dropout(self.embedding_norm(hidden))
        for layer in self.layers:
            hidden = layer(hidden)
        return cast(torch.Tensor, self.project_out(self.final_norm(hidden)))


class Layer(nn.Module):
    """Attention and feed-forward, in sequence or in parallel behind one norm, optionally with norms behind them."""

    def __init__(self, facts: Architecture, number: int, attention: Attention) -> None:
        super().__init__()
        count = facts.norms_per_layer
        self.norms = nn.ModuleList(norm(facts) for _ in range(count))
        self.attention = SelfAttention(facts, attention)
        is_sparse = facts.experts is not None and number >= facts.experts.dense_layers
        self.ffn = Mixture(facts, facts.experts) if is_sparse and facts.experts else FeedForward(facts, facts.ffn_size)
        self.dropout = nn.Dropout(facts.hidden_dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        norms = list(self.norms)
        if len(norms) == 1:
            normed = norms[0](hidden)
            return cast(torch.Tensor, hidden + self.dropout(self.attention(normed)) + self.dropout(self.ffn(normed)))
        behind = norms[2:] if len(norms) == 4 else (nn.Identity(), nn.Identity())
        hidden = hidden + self.dropout(behind[0](self.attention(norms[0](hidden))))
        return cast(torch.Tensor, hidden + self.dropout(behind[1](self.ffn(norms[1](hidden)))))


class SelfAttention(nn.Module):
    """Causal attention, with grouped queries if heads share keys and values."""

    def __init__(self, facts: Architecture, attention: Attention) -> None:
        super().__init__()
        inner, shared = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
        self.facts = facts
        self.is_eager = attention is Attention.EAGER or facts.makes_scores or bool(facts.attention_softcap)
        self.query = nn.Linear(facts.hidden_size, inner, bias=facts.qkv_bias)
        self.key = nn.Linear(facts.hidden_size, shared, bias=facts.qkv_bias)
        self.value = nn.Linear(facts.hidden_size, shared, bias=facts.qkv_bias)
        self.output = nn.Linear(inner, facts.hidden_size, bias=facts.attention_output_bias)
        self.query_norm = norm(facts, facts.head_dim) if facts.query_key_norm else nn.Identity()
        self.key_norm = norm(facts, facts.head_dim) if facts.query_key_norm else nn.Identity()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query = self.query_norm(self._by_head(self.query(hidden)))
        key = self.key_norm(self._by_head(self.key(hidden)))
        value = self._by_head(self.value(hidden))
        if not self.facts.position_count:
            query, key = rotated(query), rotated(key)
        mixed = self._eager(query, key, value) if self.is_eager else self._fused(query, key, value)
        return cast(torch.Tensor, self.output(mixed.transpose(1, 2).flatten(2)))

    def _by_head(self, flat: torch.Tensor) -> torch.Tensor:
        by_head: torch.Tensor = flat.unflatten(-1, (-1, self.facts.head_dim))
        return by_head.transpose(1, 2)

    def _fused(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        dropout = self.facts.attention_dropout if self.training else 0.0
        # Flash kernels read shared heads in place but take only 16 bits; in fp32 torch would materialize the scores.
        shares = query.dtype is not torch.float32 or torch.is_autocast_enabled(query.device.type)
        if not shares:
            key, value = self._repeated(key), self._repeated(value)
        attend = functional.scaled_dot_product_attention
        return attend(query, key, value, dropout_p=dropout, is_causal=True, enable_gqa=shares)

    def _repeated(self, shared: torch.Tensor) -> torch.Tensor:
        groups = self.facts.heads // self.facts.kv_heads
        return shared.repeat_interleave(groups, 1) if groups > 1 else shared

    def _eager(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        key, value, length = self._repeated(key), self._repeated(value), query.shape[-2]
        future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores = _capped(query @ key.mT / self.facts.head_dim**0.5, self.facts.attention_softcap)
        scores = scores.masked_fill(future, float("-inf"))
        weights = functional.dropout(scores.softmax(-1), self.facts.attention_dropout, self.training)
        return weights @ value


def _capped(scores: torch.Tensor, cap: float) -> torch.Tensor:
    return cap * torch.tanh(scores / cap) if cap else scores


class FeedForward(nn.Module):
    """Up- and down-projection, with a gate or a GELU."""

    def __init__(self, facts: Architecture, size: int) -> None:
        super().__init__()
        hidden, bias = facts.hidden_size, facts.ffn_bias
        self.gate = nn.Linear(hidden, size, bias=bias) if facts.gated_ffn else None
        self.up = nn.Linear(hidden, size, bias=bias)
        self.down = nn.Linear(size, hidden, bias=bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = self.up(hidden)
        inner = functional.gelu(inner) if self.gate is None else functional.silu(self.gate(hidden)) * inner
        return cast(torch.Tensor, self.down(inner))


class Mixture(nn.Module):
    """A mixture of experts: each token visits a few, and all visit the shared one."""

    def __init__(self, facts: Architecture, experts: Experts) -> None:
        super().__init__()
        self.per_token = experts.per_token
        self.gate = nn.Linear(facts.hidden_size, experts.count, bias=False)
        self.experts = nn.ModuleList(FeedForward(facts, experts.ffn_size) for _ in range(experts.count))
        self.shared = FeedForward(facts, experts.shared_ffn_size) if experts.shared_ffn_size else None
        self.shared_gate = nn.Linear(facts.hidden_size, 1, bias=False) if experts.gated_shared else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = hidden.flatten(0, 1)
        weights, chosen = self.gate(tokens).softmax(-1).topk(self.per_token)
        mixed = torch.zeros_like(tokens)
        # Every rank calls every expert, even without tokens: sharded weights are gathered by all ranks or none.
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            mixed = mixed.index_add(0, rows, (expert(tokens[rows]) * weights[rows, places, None]).to(mixed.dtype))
        if self.shared is not None:
            gate = 1.0 if self.shared_gate is None else self.shared_gate(tokens).sigmoid()
            mixed = mixed + self.shared(tokens) * gate
        return mixed.view_as(hidden)


class RmsNorm(nn.Module):
    """RMSNorm operator by operator, as transformers writes it (LlamaRMSNorm): torch's fused kernel keeps less."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _RMS_EPSILON)
        return self.weight * wide.to(hidden.dtype)


def norm(facts: Architecture, size: int | None = None) -> nn.Module:
    """Return the norm of this architecture."""
    return (RmsNorm if facts.rms_norm else nn.LayerNorm)(size or facts.hidden_size)


def rotated(heads: torch.Tensor) -> torch.Tensor:
    """Apply rotary positions (Su et al., RoFormer, 2021), pairing the first half of each head with the second."""
    length, half = heads.shape[-2], heads.shape[-1] // 2
    speeds = _ROTARY_BASE ** (-torch.arange(half, device=heads.device) / half)
    angles = torch.outer(torch.arange(length, device=heads.device), speeds)
    cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads[..., :half], heads[..., half : 2 * half]
    turned = (first * cosine - second * sine, first * sine + second * cosine, heads[..., 2 * half :])
    return torch.cat(turned, -1)


def _refusal(facts: Architecture, problem: str) -> ValueError:
    return ValueError(
        f"the built-in trainer builds plain decoders with a language-model head, {problem}, as {facts.name} is; "
        "give the job a template with a script of its own"
    )


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
