"""The part of MemTune that lives inside the training pods: makes a plan real, measures memory, always reports.

A script of your own uses ``initialize``; see ``memtune_runner.engine``. One that saves by itself tells so with
``checkpoint_saved``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memtune_runner.checkpoints.saving import checkpoint_saved as checkpoint_saved
    from memtune_runner.engine import Engine as Engine
    from memtune_runner.engine import initialize as initialize

__all__ = ["Engine", "checkpoint_saved", "initialize"]


def __getattr__(name: str) -> Any:
    # The launcher imports this package too and must not wait for torch, nor need it.
    if name == "checkpoint_saved":
        from memtune_runner.checkpoints import saving

        return saving.checkpoint_saved
    if name in __all__:
        from memtune_runner import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
