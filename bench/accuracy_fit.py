"""Fits the global constants of the memory model, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accuracy_rows import Row

from memtune.memory.constants import FITTED, Constants
from memtune.memory.prediction import Interval
from memtune.memory.predictor import predict_recipe

# The start of every fit: values from the sources named beside the formulas, before any row was used. A constant that
# the rows do not affect stays there. Ranges are physical.
START = {
    "activation_factor": (1.0, 0.8, 1.4),
    "backward_factor": (2.0, 0.0, 5.0),
}
_STEPS = (0.1, 0.04)
# A larger error means that the model lacks a mechanism, and must not bend the constants.
_ROBUST = 0.25
# Regularization towards the start.
_PULL = 0.002


def predicted(row: Row, constants: Constants) -> Interval:
    """The prediction in the metric that the row reports."""
    found = predict_recipe(row.shape, row.recipe, constants)
    if row.metric in ("allocated", "active"):
        return found.allocated
    peak = found.device if row.metric == "device" else found.reserved
    if not row.gpu_bytes:
        return peak
    # Where more would be reserved than the GPU has, the allocator returns what it does not need.
    outside = found.device.expected - peak.expected
    room = row.gpu_bytes - outside
    return Interval(*(min(size, max(room, need - outside)) for size, need in zip(peak, found.needed, strict=True)))


def fit(rows: Sequence[Row]) -> Constants:
    """Fit the constants to these rows by coordinate search, coarse to fine. Without rows they stay at the start.

    The widths are not fitted: one source's errors say little about the next one's.
    """
    constants = Constants()
    for name, (start, _, _) in START.items():
        constants = _with(constants, name, start)
    if not rows:
        return constants
    best = _loss(rows, constants)
    for step in _STEPS:
        for name in FITTED:
            constants, best = _along(rows, constants, best, name, step)
    return constants


def _along(rows: Sequence[Row], constants: Constants, best: float, name: str, step: float) -> tuple[Constants, float]:
    _, low, high = START[name]
    for direction in (1, -1):
        while True:
            value = min(max(getattr(constants, name) + direction * step * (high - low), low), high)
            moved = _with(constants, name, value)
            loss = _loss(rows, moved)
            if loss >= best:
                break
            constants, best = moved, loss
    return constants, best


def _with(constants: Constants, name: str, value: float) -> Constants:
    changes: dict[str, Any] = {name: value}
    return replace(constants, **changes)


def _loss(rows: Sequence[Row], constants: Constants) -> float:
    errors = (abs(math.log(predicted(row, constants).expected / row.peak_bytes)) for row in rows)
    pull: float = sum(
        abs(getattr(constants, name) - start) / (high - low) for name, (start, low, high) in START.items()
    )
    return sum(min(error, _ROBUST) for error in errors) / len(rows) + _PULL * pull
