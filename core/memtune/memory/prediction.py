"""`Prediction`: peaks per phase and component, each as an interval, never a bare number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from memtune.plans.plan import Plan


class Interval(NamedTuple):
    """``expected`` between ``lower`` and ``upper``; ``upper`` is the 97.5% bound."""

    lower: float
    expected: float
    upper: float

    @property
    def width(self) -> float:
        """Upper over lower; 1.0 is certainty."""
        return self.upper / self.lower if self.lower else float("inf")


class Component(NamedTuple):
    """One named part of the memory at the peak, such as ``weights`` or ``activations``."""

    name: str
    bytes: Interval


@dataclass(frozen=True)
class Prediction:
    """The memory of one rank under one plan. ``components`` add up to ``device``, at the phase that peaks highest."""

    peak_phase: str
    # Computed on demand: of thousands of ranked candidates, people read a few.
    phase_breakdown: Callable[[], dict[str, Interval]] = field(compare=False, repr=False)
    breakdown: Callable[[], tuple[Component, ...]] = field(compare=False, repr=False)
    requested: Interval
    allocated: Interval
    active: Interval
    reserved: Interval
    device: Interval
    step_seconds: Interval
    tokens_per_second: Interval

    @cached_property
    def phases(self) -> dict[str, Interval]:
        """``device`` in each phase, by the phase's name."""
        return self.phase_breakdown()

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The parts of ``device`` at the peak."""
        return self.breakdown()

    def fits(self, usable_bytes: int, headroom: float) -> bool:
        """Whether an unmeasured plan may be launched: the larger of headroom and interval must stay free."""
        return max(self.device.upper, self.device.expected / (1 - headroom)) <= usable_bytes

    def cannot_fit(self, usable_bytes: int) -> bool:
        """Whether even the lower bound exceeds the GPU's memory."""
        return self.device.lower > usable_bytes


class PredictsPlans(Protocol):
    """The protocol of predictors, also of tests'."""

    def predict(self, plan: Plan) -> Prediction: ...
