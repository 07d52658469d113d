"""Facts about a batch from a library's own training step, where the model's inputs alone would mislead.

A sample may be several rows, such as the chosen and the rejected answer of a pair. A model may run without gradients
within a step, as the reference of a preference loss does: neither evaluation nor training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_goes_on = False
_rows_of_sample = 1


def goes_on() -> bool:
    """Whether the library is within a training step."""
    return _goes_on


def rows_of_sample() -> int:
    """How many rows of a batch make one sample, according to the last step."""
    return _rows_of_sample


@contextmanager
def during(rows: int) -> Iterator[None]:
    """Mark a training step on a batch with ``rows`` rows per sample."""
    global _goes_on, _rows_of_sample
    _goes_on, _rows_of_sample = True, rows
    try:
        yield
    finally:
        _goes_on = False


def reset() -> None:
    """Reset to the start of a run."""
    global _goes_on, _rows_of_sample
    _goes_on, _rows_of_sample = False, 1
