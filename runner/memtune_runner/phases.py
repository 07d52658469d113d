"""Which part of the run the process is in. Hooks set it; an engine and a checkpoint set it where they know better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from memtune.report import Phase

_current = Phase.INIT
_ended: Counter[Phase] = Counter()


def current() -> Phase:
    """The phase that the process is in now. Other threads may ask, too."""
    return _current


def enter(phase: Phase) -> None:
    """From here on the process is in ``phase``, until something else begins."""
    _set(phase)


def times_ended(phase: Phase) -> int:
    """How many blocks of ``phase`` have come to their end, without an exception."""
    return _ended[phase]


def reset() -> None:
    """Back to the beginning of a run."""
    _ended.clear()
    _set(Phase.INIT)


@contextmanager
def during(phase: Phase) -> Iterator[None]:
    """Be in ``phase`` for a block. An exception leaves it standing: the report asks where that came from."""
    before = _current
    enter(phase)
    yield
    _ended[phase] += 1
    _set(before)


def _set(phase: Phase) -> None:
    global _current
    _current = phase
