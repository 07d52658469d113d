"""How far each component is trusted: a relative error per component, its mean and its covariance.

Before any measurement the means are 0 and the errors independent. `memtune.calibrate` updates both.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from memtune.predict.constants import Constants

# The relative error that all components inside the allocator share.
UNMODELLED = "unmodelled"


class Belief:
    """A Gaussian belief about the relative error of each component; widths are those of a 97.5% bound."""

    def __init__(self, means: Mapping[str, float], covariance: Mapping[tuple[str, str], float]) -> None:
        self.means = dict(means)
        self.covariance = dict(covariance)
        self.common = 1.0 + self.means.get(UNMODELLED, 0.0)
        self._scales = {name: max(1.0 + mean, 0.0) for name, mean in self.means.items()}
        self._diagonal = {a: value for (a, b), value in self.covariance.items() if a == b}
        self._widths = {name: sqrt(max(value, 0.0)) for name, value in self._diagonal.items()}
        self._mixed = [(a, b, value) for (a, b), value in self.covariance.items() if a < b]

    @classmethod
    def prior(cls, constants: Constants) -> Belief:
        """What is believed before anything was measured."""
        widths = {**constants.trust, UNMODELLED: constants.unmodelled}
        return cls({}, {(name, name): width**2 for name, width in widths.items()})

    def scale(self, name: str) -> float:
        """What a component's formula is multiplied by."""
        return self._scales.get(name, 1.0)

    def variance(self, parts: Mapping[str, float]) -> float:
        """The squared half-width of a sum of components."""
        diagonal = self._diagonal
        total = 0.0
        for name, size in parts.items():
            total += diagonal[name] * size * size
        if self._mixed:
            get = parts.get
            total += 2 * sum(value * get(a, 0.0) * get(b, 0.0) for a, b, value in self._mixed)
        return max(total, 0.0)

    @property
    def correlated(self) -> bool:
        """Whether measurements have tied the errors of components together."""
        return bool(self._mixed)

    def width(self, name: str) -> float:
        """The half-width of one component, relative to its bytes."""
        return self._widths[name]

    def updated(self, parts: Mapping[str, float], surprise: float, noise: float) -> Belief:
        """What is believed after a sum of components came out `surprise` bytes higher than expected."""
        names = sorted(self._diagonal)
        reach = {a: sum(self._covariance(a, b) * parts.get(b, 0.0) for b in names) for a in names}
        total = sum(parts.get(a, 0.0) * reach[a] for a in names) + noise
        means = {a: self.means.get(a, 0.0) + reach[a] * surprise / total for a in names}
        pairs = {(a, b): self._covariance(a, b) - reach[a] * reach[b] / total for a in names for b in names if a <= b}
        return Belief(means, pairs)

    def towards(self, other: Belief, share: float) -> Belief:
        """This belief's means moved a share of the way to another's, whose covariance it takes."""
        names = {*self.means, *other.means}
        means = {n: (1 - share) * self.means.get(n, 0.0) + share * other.means.get(n, 0.0) for n in names}
        return Belief(means, other.covariance)

    def _covariance(self, a: str, b: str) -> float:
        return self.covariance.get((a, b) if a <= b else (b, a), 0.0)
