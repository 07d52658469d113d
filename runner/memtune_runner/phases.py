"""Which part of the run the process is in. Hooks set it; an engine and a checkpoint set it where they know better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from memtune.report import Phase

_current = Phase.INIT
_entered: Counter[Phase] = Counter()


def current() -> Phase:
    """The phase that the process is in now. Other threads may ask, too."""
    return _current


def enter(phase: Phase) -> None:
    """From here on the process is in ``phase``, until something else begins."""
    _set(phase)
    _entered[phase] += 1


def times_entered(phase: Phase) -> int:
    """How often the process has been in ``phase``."""
    return _entered[phase]


def reset() -> None:
    """Back to the beginning of a run."""
    _entered.clear()
    _set(Phase.INIT)


@contextmanager
def during(phase: Phase) -> Iterator[None]:
    """Be in ``phase`` for a block. An exception leaves it standing: the report asks where that came from."""
    before = _current
    enter(phase)
    yield
    _set(before)


def _set(phase: Phase) -> None:
    global _current
    _current = phase
