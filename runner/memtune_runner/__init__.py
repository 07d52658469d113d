"""The part of MemTune that runs in training pods: applies a plan, measures memory, always reports.

Your own script calls ``initialize`` (see ``memtune_runner.engine``), iterates its data with ``ResumableSampler`` to
continue after a resume, and reports checkpoints that it saves by itself with ``checkpoint_saved``. It computes a loss
that checkpoints its parts within ``loss_in_parts``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memtune_runner.checkpoints.saving import checkpoint_saved as checkpoint_saved
    from memtune_runner.engine import Engine as Engine
    from memtune_runner.engine import initialize as initialize
    from memtune_runner.rank.applied_knobs import loss_in_parts as loss_in_parts
    from memtune_runner.sampler import ResumableSampler as ResumableSampler

__all__ = ["Engine", "ResumableSampler", "checkpoint_saved", "initialize", "loss_in_parts"]

_HOMES = {
    "Engine": "engine",
    "initialize": "engine",
    "ResumableSampler": "sampler",
    "checkpoint_saved": "checkpoints.saving",
    "loss_in_parts": "rank.applied_knobs",
}


def __getattr__(name: str) -> Any:
    # The launcher imports this package too; it must not need torch nor wait for its import.
    if name in _HOMES:
        return getattr(import_module(f"memtune_runner.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
