"""Which part of the run the process is in. Hooks set it; an engine and a checkpoint set it where they know better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from memtune.wire.report import Phase

_current = Phase.INIT
_ended: Counter[Phase] = Counter()
_when_left: list[Callable[[Phase], None]] = []
_trains: int | None = None  # the thread that was the last to enter a phase


def current() -> Phase:
    """The phase that the process is in now. Other threads may ask, too."""
    return _current


def enter(phase: Phase) -> None:
    """From here on the process is in ``phase``, until something else begins."""
    global _trains
    _trains = get_ident()
    _set(phase)


def is_beside_training() -> bool:
    """Whether another thread than this one trains: this one saves in the background, say."""
    return _trains not in (None, get_ident())


def times_ended(phase: Phase) -> int:
    """How many blocks of ``phase`` have come to their end, without an exception."""
    return _ended[phase]


def reset() -> None:
    """Back to the beginning of a run."""
    global _trains
    _trains = None
    _ended.clear()
    _when_left.clear()
    _set(Phase.INIT)


def when_left(told: Callable[[Phase], None]) -> None:
    """Call with each phase that the process leaves, just before it does, until the next run begins."""
    _when_left.append(told)


@contextmanager
def during(phase: Phase) -> Iterator[None]:
    """Be in ``phase`` for a block. An exception leaves it standing: the report asks where that came from.

    What another thread does beside the training, such as a save in the background, is no phase of it.
    """
    before, is_beside = _current, is_beside_training()
    if not is_beside:
        _set(phase)
    yield
    _ended[phase] += 1
    if not is_beside:
        _set(before)


def _set(phase: Phase) -> None:
    global _current
    if phase is not _current:
        for told in _when_left:
            told(_current)
    _current = phase
