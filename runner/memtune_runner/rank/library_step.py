"""What a library's own training step tells of the batch that it is given, where the model's inputs alone mislead.

A sample may be several rows: the pair of a good and a bad answer is two. And a model may be called without gradients in
the midst of a step, as the reference of a preference loss is: that is neither evaluation nor training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_goes_on = False
_rows_of_sample = 1


def goes_on() -> bool:
    """Whether the library is within a training step now."""
    return _goes_on


def rows_of_sample() -> int:
    """How many rows of a batch are one sample, as the last step has told."""
    return _rows_of_sample


@contextmanager
def during(rows: int) -> Iterator[None]:
    """Be in a training step on a batch that has so many rows for each sample."""
    global _goes_on, _rows_of_sample
    _goes_on, _rows_of_sample = True, rows
    try:
        yield
    finally:
        _goes_on = False


def reset() -> None:
    """Back to the beginning of a run."""
    global _goes_on, _rows_of_sample
    _goes_on, _rows_of_sample = False, 1
