"""KV cache of a job that generates while it trains, and the HBM that remains for the optimizer.

Keys and values of every layer are kept for every token (2305.13245 for grouped heads). A paged cache allocates pages of
several tokens, so that a sequence wastes less than one page (PagedAttention, 2309.06180, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from memtune.model.architecture import Architecture, Kind

# vLLM's default block size, in tokens (vllm/config/cache.py).
DEFAULT_PAGE_TOKENS = 16


@dataclass(frozen=True)
class Generation:
    """The generation of one rank at a time: ``sequences`` of at most ``tokens`` each, prompt included.

    ``source_tokens`` are what an encoder-decoder reads; its decoder caches their keys and values too.
    """

    sequences: int
    tokens: int
    source_tokens: int = 0
    element_bytes: float = 2.0
    page_tokens: int = DEFAULT_PAGE_TOKENS
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        for name in ("sequences", "tokens", "element_bytes", "page_tokens", "tensor_parallel"):
            if getattr(self, name) <= 0:
                raise ValueError(f"generation: {name} is {getattr(self, name)}; it must be above 0")

    @property
    def pages_per_sequence(self) -> int:
        """Pages of one sequence; a partly used page counts in full."""
        return self._pages(self.tokens) + self._pages(self.source_tokens)

    @property
    def cached_tokens(self) -> int:
        """The token capacity of all sequences' pages."""
        return self.sequences * self.pages_per_sequence * self.page_tokens

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)


@dataclass(frozen=True)
class KvBudget:
    """The size of a generation's cache, and the free GPU memory for it."""

    token_bytes: float
    page_bytes: float
    pages_per_sequence: int
    pages: int
    needed_bytes: float
    wasted_bytes: float
    fitting_sequences: int
    left_bytes: float


def token_bytes(architecture: Architecture, element_bytes: float = 2.0, tensor_parallel: int = 1) -> float:
    """Keys and values of one token on one rank: 2 x layers x KV heads x head size x bytes of a number."""
    if architecture.kind not in (Kind.DECODER, Kind.ENCODER_DECODER):
        raise ValueError(f"{architecture.name} is no decoder: it generates nothing and needs no KV cache")
    # With more ranks than KV heads the heads are replicated, so that each rank has at least one.
    heads = -(-architecture.kv_heads // tensor_parallel)
    return 2 * architecture.layers * heads * architecture.head_dim * element_bytes


def kv_budget(architecture: Architecture, generation: Generation, free_bytes: float) -> KvBudget:
    """How much of ``free_bytes`` the cache takes, and how many such sequences would fit."""
    each = token_bytes(architecture, generation.element_bytes, generation.tensor_parallel)
    page_bytes = each * generation.page_tokens
    per_sequence = generation.pages_per_sequence
    pages = per_sequence * generation.sequences
    used_bytes = each * (generation.tokens + generation.source_tokens) * generation.sequences
    return KvBudget(
        token_bytes=each,
        page_bytes=page_bytes,
        pages_per_sequence=per_sequence,
        pages=pages,
        needed_bytes=pages * page_bytes,
        wasted_bytes=pages * page_bytes - used_bytes,
        fitting_sequences=max(0, int(free_bytes // (per_sequence * page_bytes))),
        left_bytes=free_bytes - pages * page_bytes,
    )
