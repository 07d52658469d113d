"""The phase that the process is in (training, evaluation, save, ...), set by hooks, engines and checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from memtune.wire.report import Phase

_current = Phase.INIT
_ended: Counter[Phase] = Counter()
_when_left: list[Callable[[Phase], None]] = []
_trains: int | None = None  # the last thread that entered a phase


def current() -> Phase:
    """Return the current phase. Safe to call from other threads."""
    return _current


def enter(phase: Phase) -> None:
    """Enter ``phase`` until another one begins."""
    global _trains
    _trains = get_ident()
    _set(phase)


def is_beside_training() -> bool:
    """Whether another thread trains while this one does something else, such as a save in the background."""
    return _trains not in (None, get_ident())


def times_ended(phase: Phase) -> int:
    """How many blocks of ``phase`` have ended without an exception."""
    return _ended[phase]


def reset() -> None:
    """Reset to the start of a run."""
    global _trains
    _trains = None
    _ended.clear()
    _when_left.clear()
    _set(Phase.INIT)


def when_left(callback: Callable[[Phase], None]) -> None:
    """Register a callback for each phase that the process is about to leave, until the next run begins."""
    _when_left.append(callback)


@contextmanager
def during(phase: Phase) -> Iterator[None]:
    """Be in ``phase`` for a block. After an exception the phase stays, so that the report can name it.

    A thread that runs beside training, such as a background save, does not change the phase.
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
        for callback in _when_left:
            callback(_current)
    _current = phase
