"""Measures the duration of steps and extrapolates from shortened ones. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

# The first step compiles, fills caches and creates the optimizer's states, unlike all later ones.
_WARM_UP_STEPS = 1
_REMEMBERED_STEPS = 256


class _Step(NamedTuple):
    seconds: float
    optimizer_seconds: float
    micro_steps: int
    tokens: int
    disturbed: bool


class StepDuration:
    """The durations of the latest optimizer steps. A step with an evaluation or a save in it is disturbed."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=_REMEMBERED_STEPS)
        self._count = 0
        self._began: float | None = None
        self._optimizer_seconds = 0.0
        self.last_seconds: float | None = None

    def training_began(self, now: float) -> None:
        """Start timing at the first batch; what came before belongs to no step."""
        if self._began is None:
            self._began = now

    def optimizer_took(self, seconds: float) -> None:
        """Record the optimizer's part of a step, which does not grow with the number of micro-batches."""
        self._optimizer_seconds += seconds

    def stepped(self, now: float, micro_steps: int, tokens: int, disturbed: bool) -> None:
        """Record the end of a step of ``micro_steps`` micro-batches and ``tokens`` tokens on this rank."""
        self.last_seconds = now - (now if self._began is None else self._began)
        self._count += 1
        if self._count > _WARM_UP_STEPS:
            self._steps.append(_Step(self.last_seconds, self._optimizer_seconds, micro_steps, tokens, disturbed))
        self._began, self._optimizer_seconds = now, 0.0

    def usual_seconds(self) -> float | None:
        """Return the median duration of a step; None before the first. Safe to call from other threads."""
        steps = [each.seconds for each in tuple(self._steps)]
        return median(steps) if steps else self.last_seconds

    def step_seconds(self, accumulation: int) -> float | None:
        """Return the median duration of a step of ``accumulation`` micro-batches; None before the second step."""
        steps = self._undisturbed()
        return median(_extrapolated(each, accumulation) for each in steps) if steps else None

    def tokens_per_step(self, accumulation: int) -> float | None:
        """Return the tokens of a step of ``accumulation`` micro-batches on this rank; None before the second step."""
        steps = [each for each in self._undisturbed() if each.micro_steps]
        return median(each.tokens * accumulation / each.micro_steps for each in steps) if steps else None

    def last_step(self, accumulation: int) -> tuple[float, float] | None:
        """Return seconds and tokens of the last step, scaled to ``accumulation`` micro-batches, if comparable."""
        last = self._steps[-1] if self._steps else None
        if last is None or last.disturbed or not last.micro_steps:
            return None
        return _extrapolated(last, accumulation), last.tokens * accumulation / last.micro_steps

    def _undisturbed(self) -> list[_Step]:
        # If every step is disturbed, such as by an evaluation in each, disturbed steps are the norm.
        return [each for each in self._steps if not each.disturbed] or list(self._steps)


def _extrapolated(step: _Step, accumulation: int) -> float:
    """Scale the time of the micro-batches to ``accumulation``; the optimizer's part stays the same."""
    if step.micro_steps in (0, accumulation):
        return step.seconds
    micro_seconds = (step.seconds - step.optimizer_seconds) / step.micro_steps
    return accumulation * micro_seconds + step.optimizer_seconds
