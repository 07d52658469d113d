"""`TracedModel`: a model known only by its trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from memtune.wire.names import short_hash
from memtune.wire.trace import Trace
from memtune.wire.trace_message import unpack

_HASH_CHARACTERS = 16


@dataclass(frozen=True)
class TracedModel:
    """A traced model. Two are equal if their traces are."""

    digest: str
    trace: Trace = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.trace.model


@lru_cache(maxsize=32)
def read_traced(message: str) -> TracedModel:
    """The model of a trace message, cached by message so that its replays are kept."""
    return TracedModel(short_hash(message, _HASH_CHARACTERS), unpack(message))
