"""Uncertainty of each component: relative errors with their means and covariance.

Before any measurement the means are 0 and the errors independent. `memtune.memory.calibration` updates both.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import hypot, sqrt
from types import MappingProxyType
from typing import NamedTuple

from memtune.memory.constants import Constants

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
    """A Gaussian belief about the relative error of each component; widths are those of a 95% bound.

    ``doubt`` is an additional width of each whole sum. ``job_widths`` are those of a job of which nothing was measured,
    by the class of its plans.
    """

    def __init__(
        self,
        means: Mapping[str, float],
        covariance: Mapping[tuple[str, str], float],
        doubt: float = 0.0,
        job_widths: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.means = dict(means)
        self.doubt = doubt
        self.job_widths = job_widths
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
        return cls({}, {(name, name): width**2 for name, width in widths.items()}, job_widths=constants.job_widths)

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
        told = {a: sum(self._covariance(a, b) * size for b, size in sizes) for a in names}
        total = sum(size * told[a] for a, size in sizes) + noise
        # The measurement says nothing about errors independent of all its parts.
        reach = {a: each for a, each in told.items() if each}
        means = {a: self.means.get(a, 0.0) + each * surprise / total for a, each in reach.items()}
        pairs = {(a, b): self._covariance(a, b) - reach[a] * reach[b] / total for a in reach for b in reach if a <= b}
        return Belief({**self.means, **means}, {**self.covariance, **pairs})

    def known(self, parts: Mapping[str, float], expected: float, half_width: float) -> Belief:
        """The belief if only the sum of components is known: their errors are fully correlated."""
        total = sum(parts.values())
        others = {pair: value for pair, value in self.covariance.items() if parts.keys().isdisjoint(pair)}
        shared = {(a, b): (half_width / total) ** 2 for a in parts for b in parts if a <= b}
        means = {**self.means, **dict.fromkeys(parts, expected / total - 1)}
        return Belief(means, {**others, **shared}, self.doubt, self.job_widths)

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
        return Belief(self.means, self.covariance, hypot(self.doubt, share), self.job_widths)

    def with_job_widths(self, other: Belief) -> Belief:
        """This belief with another's widths of a job."""
        return Belief(self.means, self.covariance, self.doubt, other.job_widths)

    def _covariance(self, a: str, b: str) -> float:
        return self.covariance.get((a, b) if a <= b else (b, a), 0.0)
