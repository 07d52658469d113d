"""Checkpoints: fenced by attempt, completed by a manifest, and resumable under another plan."""

from __future__ import annotations

from contextlib import suppress

from memtune_runner.checkpoints import manifest
from memtune_runner.checkpoints.complete_checkpoints import Checkpoint, newest
from memtune_runner.checkpoints.latest_checkpoint import NotResumableError, Resumed, resolve
from memtune_runner.checkpoints.manifest import ManifestError
from memtune_runner.checkpoints.store import FencedError, Ranks, Store
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
    """Return the newest checkpoint that this process saw completed; None before the first."""
    return Store.last_completed


def newest_known(settings: Settings) -> Checkpoint | None:
    """Return the newest complete checkpoint that this process knows: its own last one, else the resumed one."""
    found = last_completed()
    if found is None and settings.resume_from is not None:
        with suppress(ManifestError):
            found = Checkpoint(settings.resume_from, manifest.read_complete(settings.resume_from))
    return found
