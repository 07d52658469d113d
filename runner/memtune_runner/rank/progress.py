"""How far this process has trained: its watch tells, and what the script calls by itself asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """Backward passes that have begun, optimizer steps that have ended, and samples trained over all ranks.

    The samples are a lower bound where the batches of a step cannot be counted, or differ between the ranks.
    """

    backward_passes: int = 0
    steps: int = 0
    samples: int = 0


def _none() -> Progress:
    return Progress()


_measure: Callable[[], Progress] = _none


def now() -> Progress:
    """How far this process has come. Other threads may ask, too."""
    return _measure()


def begin(measure: Callable[[], Progress]) -> None:
    """Ask ``measure`` from here on."""
    global _measure
    _measure = measure


def reset() -> None:
    """Back to the beginning of a run."""
    begin(_none)
