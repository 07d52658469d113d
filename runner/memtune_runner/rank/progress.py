"""How far this process has trained, published by its watch for code that the script calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """Backward passes begun, optimizer steps ended, and samples trained over all ranks.

    The samples are a lower bound if a step's batches cannot be counted or differ between ranks.
    """

    backward_passes: int = 0
    steps: int = 0
    samples: int = 0


class Trained(NamedTuple):
    """Where a training is: the optimizer steps behind its weights and their samples over all ranks, from its start.

    The last step of an epoch may have fewer samples than the others, so neither number follows from the other.
    """

    steps: int
    samples: int


def _none() -> Progress:
    return Progress()


_measure: Callable[[], Progress] = _none


def now() -> Progress:
    """Return the progress so far. Safe to call from other threads."""
    return _measure()


def begin(measure: Callable[[], Progress]) -> None:
    """Use ``measure`` as the source from now on."""
    global _measure
    _measure = measure


def reset() -> None:
    """Reset to the start of a run."""
    begin(_none)
