"""Checkpoints: fenced by attempt, completed by a manifest, resumed across plans."""

from __future__ import annotations

from memtune_runner.checkpoints.resolve import NotResumableError, Resumed, resolve
from memtune_runner.checkpoints.store import Checkpoint, FencedError, Ranks, Store, newest

__all__ = [
    "Checkpoint",
    "FencedError",
    "NotResumableError",
    "Ranks",
    "Resumed",
    "Store",
    "last_completed",
    "newest",
    "resolve",
]


def last_completed() -> Checkpoint | None:
    """The newest checkpoint that this process saw completed; None before the first."""
    return Store.last_completed
