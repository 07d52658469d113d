"""The attention and loss of a model as the engine saw them.

Imports no torch. Only the engine applies these, so only it looks: a script's own attention and loss stay unknown, and
are never reported as a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_attention: str | None = None
_fused_loss: bool | None = None
_in_loss = False


def attention() -> str | None:
    """The kernel of the first training pass that showed one: ``sdpa``, torch's own, or ``eager``; None if unknown."""
    return _attention


def fused_loss() -> bool | None:
    """Whether the script's fused loss is what was trained on; None before the first backward pass."""
    return _fused_loss


def saw_attention(kernel: str) -> None:
    """Note the attention's kernel, once for all passes."""
    global _attention
    _attention = _attention or kernel


def saw_loss(*, fused: bool) -> None:
    """Note how a loss was computed; one that was not fused is remembered."""
    global _fused_loss
    _fused_loss = fused and _fused_loss is not False


@contextmanager
def loss_in_parts() -> Iterator[None]:
    """Mark a loss whose parts are recomputed in the backward pass: what it checkpoints are no blocks of the model."""
    global _in_loss
    before, _in_loss = _in_loss, True
    try:
        yield
    finally:
        _in_loss = before


def is_in_loss() -> bool:
    """Whether a fused loss is being computed in parts."""
    return _in_loss


def reset() -> None:
    """Reset to the start of a run."""
    global _attention, _fused_loss, _in_loss
    _attention, _fused_loss, _in_loss = None, None, False
