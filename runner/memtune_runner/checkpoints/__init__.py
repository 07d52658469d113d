"""Checkpoints: fenced by attempt, completed by a manifest, resumed across plans."""

from __future__ import annotations

from contextlib import suppress

from memtune_runner.checkpoints import manifest
from memtune_runner.checkpoints.manifest import ManifestError
from memtune_runner.checkpoints.resolve import NotResumableError, Resumed, resolve
from memtune_runner.checkpoints.store import Checkpoint, FencedError, Ranks, Store, newest
from memtune_runner.rank.settings import Settings

__all__ = [
    "Checkpoint",
    "FencedError",
    "NotResumableError",
    "Ranks",
    "Resumed",
    "Store",
    "last_completed",
    "newest",
    "newest_known",
    "resolve",
]


def last_completed() -> Checkpoint | None:
    """The newest checkpoint that this process saw completed; None before the first."""
    return Store.last_completed


def newest_known(settings: Settings) -> Checkpoint | None:
    """The newest complete checkpoint that this process knows of: its own last one, else the one it resumed from."""
    found = last_completed()
    if found is None and settings.resume_from is not None:
        with suppress(ManifestError):
            found = Checkpoint(settings.resume_from, manifest.read(settings.resume_from))
    return found
