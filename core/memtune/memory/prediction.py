"""`Prediction`: peaks per phase and component, each as an interval, never a bare number.

`Belief` is what an interval's width comes from: the relative error of each component. Before any measurement the means
are 0 and the errors independent. `memtune.memory.calibration` updates both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import erf, hypot, sqrt
from typing import NamedTuple, Protocol

from memtune.memory.constants import Constants
from memtune.plans.plan import Plan

# The probability that is asked of an upper bound, and so of an unmeasured plan that is sure to fit and may be launched;
# and the standard deviations between an interval's middle and that bound.
ADMISSION = 0.95
BOUND = 1.645
# A plan that only fits if the allocator empties its cache counts as this much slower. Chosen: each time, CUDA waits for
# all kernels and maps the segments again.
_FLUSHING = 0.1


def share_below(place: float) -> float:
    """The cumulative distribution function of the standard normal distribution."""
    return (1 + erf(place / sqrt(2))) / 2


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
    half-width, upwards only, that all plans of a job of which nothing was measured have in common in ``device``.
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
        """Whether an unmeasured plan is sure to fit: the headroom stays free with a probability of `ADMISSION`."""
        return self.needed.upper <= usable_bytes * (1 - headroom)

    def fit_probability(self, usable_bytes: int, headroom: float) -> float:
        """The probability that what the plan needs leaves the headroom free."""
        return self.needed.probability_below(usable_bytes * (1 - headroom))

    def probe_probability(self, usable_bytes: int, headroom: float) -> float:
        """The probability that the peak of a probe leaves the headroom free, as far as plans of the job differ in it.

        A probe of any plan measures the shared part, so that it is no reason to prefer one of them.
        """
        peak = self.device
        own = sqrt(max((peak.upper - peak.expected) ** 2 - self.job_width_bytes**2, 0.0))
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


# The relative error that all estimated components inside the allocator share.
UNMODELLED = "unmodelled"


class Square(NamedTuple):
    """A squared half-width as a polynomial of the micro-batch."""

    still: float
    mixed: float
    moving: float

    def root(self, micro_batch: int) -> float:
        """The half-width at a micro-batch."""
        return sqrt(max(self.still + (self.mixed + self.moving * micro_batch) * micro_batch, 0.0))


class Belief:
    """A Gaussian belief about the relative error of each component; its widths are those of a 95% bound.

    ``doubt`` is an additional width of each whole sum, and ``job_width`` another one, upwards only, of a job of which
    nothing was measured.
    """

    def __init__(
        self,
        means: Mapping[str, float],
        covariance: Mapping[tuple[str, str], float],
        doubt: float = 0.0,
        job_width: float = 0.0,
    ) -> None:
        self.means = dict(means)
        self.doubt = doubt
        self.job_width = job_width
        self.covariance = dict(covariance)
        self.common = 1.0 + self.means.get(UNMODELLED, 0.0)
        self._scales = {name: max(1.0 + mean, 0.0) for name, mean in self.means.items()}
        self._diagonal = {a: value for (a, b), value in self.covariance.items() if a == b}
        self._widths = {name: sqrt(max(value, 0.0)) for name, value in self._diagonal.items()}
        self._mixed = [(a, b, value) for (a, b), value in self.covariance.items() if a < b]

    @classmethod
    def prior(cls, constants: Constants, in_transformers: bool = False) -> Belief:
        """The belief before any measurement; of models that transformers' own code makes, formulas leave out less."""
        left_out = constants.unmodelled_in_transformers if in_transformers else constants.unmodelled
        widths = {**constants.trust, UNMODELLED: left_out}
        return cls({}, {(name, name): width**2 for name, width in widths.items()}, job_width=constants.job_width)

    def scale(self, name: str) -> float:
        """The factor on a component's formula."""
        return self._scales.get(name, 1.0)

    def variance(self, parts: Mapping[str, tuple[float, float]], start: Square) -> Square:
        """The squared half-width of a sum of components, given as fixed bytes and bytes per sample.

        ``start`` is an independent variance to add.
        """
        diagonal = self._diagonal
        still, mixed, moving = start
        for name, (fixed, slope) in parts.items():
            value = diagonal[name]
            still += value * fixed * fixed
            mixed += 2 * value * fixed * slope
            moving += value * slope * slope
        for a, b, value in self._mixed:
            if a in parts and b in parts:
                (fixed, slope), (other_fixed, other_slope) = parts[a], parts[b]
                still += 2 * value * fixed * other_fixed
                mixed += 2 * value * (fixed * other_slope + slope * other_fixed)
                moving += 2 * value * slope * other_slope
        return Square(still, mixed, moving)

    @property
    def correlated(self) -> bool:
        """Whether measurements have correlated the errors of components."""
        return bool(self._mixed)

    def width(self, name: str) -> float:
        """The half-width of one component, relative to its bytes."""
        return self._widths[name]

    def knows(self, name: str) -> bool:
        """Whether the belief has an error of this name."""
        return name in self._diagonal

    def squared(self, parts: Mapping[str, float]) -> float:
        """The squared half-width of a sum of components."""
        sizes = sorted(parts.items())
        mixed = (self.covariance.get((a, b), 0.0) * x * y for (a, x), (b, y) in combinations(sizes, 2))
        return sum(self._diagonal.get(name, 0.0) * size * size for name, size in sizes) + 2 * sum(mixed)

    def updated(self, parts: Mapping[str, float], surprise: float, noise: float) -> Belief:
        """The belief after a sum of components came out `surprise` bytes higher than expected."""
        names = sorted(self._diagonal)
        sizes = [(name, parts[name]) for name in names if parts.get(name)]
        covariances = {a: sum(self._covariance(a, b) * size for b, size in sizes) for a in names}
        total = sum(size * covariances[a] for a, size in sizes) + noise
        # The measurement says nothing about errors independent of all its parts.
        reach = {a: each for a, each in covariances.items() if each}
        means = {a: self.means.get(a, 0.0) + each * surprise / total for a, each in reach.items()}
        pairs = {(a, b): self._covariance(a, b) - reach[a] * reach[b] / total for a in reach for b in reach if a <= b}
        return Belief({**self.means, **means}, {**self.covariance, **pairs})

    def known(self, parts: Mapping[str, float], expected: float, half_width: float) -> Belief:
        """The belief if only the sum of components is known: their errors are fully correlated."""
        total = sum(parts.values())
        others = {pair: value for pair, value in self.covariance.items() if parts.keys().isdisjoint(pair)}
        shared = {(a, b): (half_width / total) ** 2 for a in parts for b in parts if a <= b}
        means = {**self.means, **dict.fromkeys(parts, expected / total - 1)}
        return Belief(means, {**others, **shared}, self.doubt, self.job_width)

    def moved(self, parts: Mapping[str, float], other: Belief) -> float:
        """How many more bytes a sum of components has under this belief's means than under another's."""
        return sum(size * (self.means.get(a, 0.0) - other.means.get(a, 0.0)) for a, size in parts.items())

    def towards(self, other: Belief, share: float) -> Belief:
        """Move this belief's means a fraction of the way to another's.

        The covariance is the other's, and the remaining distance counts as error too.
        """
        names = {*self.means, *other.means}
        left = {n: (1 - share) * (other.means.get(n, 0.0) - self.means.get(n, 0.0)) for n in names}
        means = {n: other.means.get(n, 0.0) - left[n] for n in names}
        pairs = other.covariance.items()
        return Belief(means, {(a, b): v + left.get(a, 0.0) * left.get(b, 0.0) for (a, b), v in pairs})

    def doubted(self, share: float) -> Belief:
        """This belief with a wider interval for every sum."""
        return Belief(self.means, self.covariance, hypot(self.doubt, share), self.job_width)

    def measured(self) -> Belief:
        """This belief about a job of which something was measured."""
        return Belief(self.means, self.covariance, self.doubt)

    def with_job_width(self, other: Belief) -> Belief:
        """This belief with another's width of a job."""
        return Belief(self.means, self.covariance, self.doubt, other.job_width)

    def _covariance(self, a: str, b: str) -> float:
        return self.covariance.get((a, b) if a <= b else (b, a), 0.0)
