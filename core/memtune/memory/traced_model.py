"""`TracedModel`: a model known only by its trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memtune.wire.trace import Trace


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
    """The model of a message. Equal messages give one model, so that its replays are kept."""
    from memtune.wire.names import short_hash
    from memtune.wire.trace_message import unpack

    return TracedModel(short_hash(message, _HASH_CHARACTERS), unpack(message))
