"""`Prediction`: peaks per phase and component, each as an interval, never a bare number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from memtune.plans.plan import Plan

# The probability that is asked of an upper bound, and so of an unmeasured plan before it may be launched; and the
# standard deviations between an interval's middle and that bound.
ADMISSION = 0.95
BOUND = 1.645
# A plan that only fits if the allocator empties its cache counts as this much slower. Chosen: each time, CUDA waits for
# all kernels and maps the segments anew.
_FLUSHING = 0.1


def share_below(place: float) -> float:
    """The cumulative distribution function of the standard normal distribution."""
    return (1 + math.erf(place / math.sqrt(2))) / 2


def percent(probability: float) -> int:
    """A probability in whole percent, which reaches that of `ADMISSION` only if the probability does."""
    nearest, asked = round(100 * probability), round(100 * ADMISSION)
    return nearest if probability >= ADMISSION else min(nearest, asked - 1)


class Interval(NamedTuple):
    """``expected`` between ``lower`` and ``upper``; ``upper`` is the 95% bound."""

    lower: float
    expected: float
    upper: float

    @property
    def width(self) -> float:
        """Upper over lower; 1.0 is certainty."""
        return self.upper / self.lower if self.lower else float("inf")

    def probability_below(self, limit: float) -> float:
        """The probability that the value is at most a limit."""
        spread = max((self.upper - self.expected) / BOUND, 1.0)
        return share_below((limit - self.expected) / spread)


class Component(NamedTuple):
    """One named part of the memory at the peak, such as ``weights`` or ``activations``."""

    name: str
    bytes: Interval


@dataclass(frozen=True)
class Prediction:
    """The memory of one rank under one plan. ``components`` add up to ``device``, at the phase that peaks highest.

    ``device`` is the peak if there is memory to spare, ``needed`` the least memory in which the plan runs: before the
    allocator fails, it returns to the device all cached segments that nothing uses. ``job_width_bytes`` is the
    half-width of ``device`` that all plans of a job of which nothing was measured have in common.
    """

    peak_phase: str
    # Computed on demand: of thousands of ranked candidates, people read a few.
    phase_breakdown: Callable[[], dict[str, Interval]] = field(compare=False, repr=False)
    breakdown: Callable[[], tuple[Component, ...]] = field(compare=False, repr=False)
    requested: Interval
    allocated: Interval
    active: Interval
    reserved: Interval
    device: Interval
    needed: Interval
    step_seconds: Interval
    tokens_per_second: Interval
    job_width_bytes: float = 0.0

    @cached_property
    def phases(self) -> dict[str, Interval]:
        """``device`` in each phase, by the phase's name."""
        return self.phase_breakdown()

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The parts of ``device`` at the peak."""
        return self.breakdown()

    def fits(self, usable_bytes: int, headroom: float) -> bool:
        """Whether an unmeasured plan may be launched: the headroom stays free with the probability of the bound."""
        return self.needed.upper <= usable_bytes * (1 - headroom)

    def fit_probability(self, usable_bytes: int, headroom: float) -> float:
        """The probability that what the plan needs leaves the headroom free."""
        return self.needed.probability_below(usable_bytes * (1 - headroom))

    def probe_probability(self, usable_bytes: int, headroom: float) -> float:
        """The probability that the peak of a probe leaves the headroom free, as far as plans of the job differ in it.

        A probe of any plan tells what they share, so that it is no reason to prefer one of them.
        """
        peak = self.device
        own = math.sqrt(max((peak.upper - peak.expected) ** 2 - self.job_width_bytes**2, 0.0))
        return peak._replace(upper=peak.expected + own).probability_below(usable_bytes * (1 - headroom))

    def flushes(self, usable_bytes: int) -> bool:
        """Whether the allocator is expected to empty its cache, which costs time, for the plan to run."""
        return self.device.expected > usable_bytes

    def speed(self, usable_bytes: int) -> float:
        """Expected tokens per second, less what emptying the cache costs."""
        return (1 - _FLUSHING * self.flushes(usable_bytes)) * self.tokens_per_second.expected

    def cannot_fit(self, usable_bytes: int) -> bool:
        """Whether even the lower bound of what the plan needs exceeds the GPU's memory."""
        return self.needed.lower > usable_bytes


class PredictsPlans(Protocol):
    """The protocol of predictors, also of tests'."""

    def predict(self, plan: Plan) -> Prediction: ...
