"""From addends to the answer: sum them per phase, take the phase that peaks, and carry the trust along.

The peak is the maximum over phases, never the sum of all addends. Every addend is linear in the micro-batch, so that
the addends of a plan without its micro-batch, its ledger, are summed once and serve every micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from typing import NamedTuple

from memtune.predict.belief import UNMODELLED, Belief
from memtune.predict.constants import Constants
from memtune.predict.recipe import Recipe
from memtune.predict.terms import PHASES, Term
from memtune.prediction import Component, Interval

OUTSIDE = frozenset({"context", "nccl"})
ALLOCATOR = "allocator"
_TINY = 1e-9


# Name, bytes and phases of a term inside the allocator: there are thousands, and plain tuples of plain values cost the
# garbage collector nothing.
_Addend = tuple[str, float, tuple[int, ...]]


@dataclass(frozen=True)
class Ledger:
    """The addends of a plan at micro-batch 0 and 1, and their sums per phase: fixed bytes, and those of each sample."""

    at_zero: Sequence[_Addend]
    at_one: Sequence[_Addend]
    totals: tuple[tuple[float, float], ...]
    outside: dict[str, float]
    fragmentation: float
    unknown_share: float
    _phases: dict[int, list[tuple[str, float, float]]] = field(default_factory=dict)

    def inside(self, phase: int) -> list[tuple[str, float, float]]:
        """Each component of a phase, fixed and for each sample. Few phases ever peak, so only those are told apart."""
        if phase not in self._phases:
            low, one = _of_phase(self.at_zero, phase), _of_phase(self.at_one, phase)
            self._phases[phase] = [(name, low.get(name, 0.0), size - low.get(name, 0.0)) for name, size in one.items()]
        return self._phases[phase]


class Peaks(NamedTuple):
    """Everything a prediction says about bytes."""

    phase: str
    phase_bytes: dict[str, float]
    breakdown: Callable[[], tuple[Component, ...]]
    requested: Interval
    allocated: Interval
    reserved: Interval
    device: Interval


def ledger(
    at_zero: Sequence[Term], at_one: Sequence[Term], recipe: Recipe, constants: Constants, belief: Belief
) -> Ledger:
    """Sum the addends of a recipe at micro-batch 0 and at micro-batch 1."""
    zero, one = _inside(at_zero), _inside(at_one)
    return Ledger(
        at_zero=zero,
        at_one=one,
        totals=tuple(
            [(low, both - low) for low, both in zip(_totals(zero, belief), _totals(one, belief), strict=True)]
        ),
        outside={term.name: term.bytes for term in at_one if term.name in OUTSIDE},
        fragmentation=fragmentation(recipe, constants),
        unknown_share=recipe.unknown_inputs * constants.unknown_widening,
    )


def _inside(terms: Sequence[Term]) -> list[_Addend]:
    return [(term.name, term.bytes, term.phases) for term in terms if term.name not in OUTSIDE]


def _totals(addends: Sequence[_Addend], belief: Belief) -> list[float]:
    """The believed bytes of each phase."""
    totals = [0.0] * len(PHASES)
    for name, size, phases in addends:
        believed = belief.common * belief.scale(name) * size
        for phase in phases:
            totals[phase] += believed
    return totals


def _of_phase(addends: Sequence[_Addend], phase: int) -> dict[str, float]:
    parts: dict[str, float] = {}
    for name, size, phases in addends:
        if phase in phases:
            parts[name] = parts.get(name, 0.0) + size
    return parts


def fragmentation(recipe: Recipe, constants: Constants) -> float:
    """Reserved over active, less one."""
    if recipe.expandable_segments:
        return constants.expandable_fragmentation
    return constants.sharded_fragmentation if recipe.weight_shards > 1 else constants.fragmentation


def peaks(sums: Ledger, micro_batch: int, constants: Constants, belief: Belief) -> Peaks:
    """Describe the phase that peaks highest at a micro-batch."""
    totals = [low + slope * micro_batch for low, slope in sums.totals]
    requested = max(totals)
    phase = totals.index(requested)
    parts = {name: low + slope * micro_batch for name, low, slope in sums.inside(phase)}
    rounded = 1 + constants.rounding
    allocated = requested * rounded
    rate = sums.fragmentation * belief.scale(ALLOCATOR)
    reserved = allocated * (1 + rate)
    outer = sum(size * belief.scale(name) for name, size in sums.outside.items())
    widths = _half_widths(sums, parts, requested, allocated, constants, belief)
    allocated_interval = around(allocated, widths[0])
    return Peaks(
        phase=PHASES[phase],
        phase_bytes={name: total * rounded * (1 + rate) + outer for name, total in zip(PHASES, totals, strict=True)},
        breakdown=partial(_components, sums, parts, reserved - requested, belief),
        requested=around(requested, widths[0]),
        allocated=allocated_interval,
        reserved=around(reserved, widths[1]),
        device=around(reserved + outer, widths[2]),
    )


def sensitivities(
    sums: Ledger, micro_batch: int, metric: str, constants: Constants, belief: Belief
) -> dict[str, float]:
    """How many bytes a metric moves for each relative error of a component."""
    totals = [low + slope * micro_batch for low, slope in sums.totals]
    requested = max(totals)
    allocated = requested * (1 + constants.rounding)
    rate = 1.0 if metric == "allocated" else 1 + sums.fragmentation * belief.scale(ALLOCATOR)
    factor = (1 + constants.rounding) * rate
    phase = sums.inside(totals.index(requested))
    found = {name: (low + slope * micro_batch) * belief.common * factor for name, low, slope in phase}
    found[UNMODELLED] = requested / belief.common * factor
    if metric != "allocated":
        found[ALLOCATOR] = allocated * sums.fragmentation
    if metric == "device":
        found.update(sums.outside)
    return found


def around(expected: float, half_width: float) -> Interval:
    """An interval that is as wide in ratio below as above, so that it never reaches zero."""
    if expected <= _TINY:
        return Interval(0.0, 0.0, half_width)
    return Interval(expected * expected / (expected + half_width), expected, expected + half_width)


def _half_widths(
    sums: Ledger, parts: dict[str, float], requested: float, allocated: float, constants: Constants, belief: Belief
) -> tuple[float, float, float]:
    """Of allocated, reserved and device bytes: each adds components to the one before."""
    own = (constants.noise**2 + sums.unknown_share**2) * requested * requested
    seen = {**parts, UNMODELLED: requested}
    inner = belief.variance(seen) + own
    if not belief.correlated:
        outer = inner + belief.variance({ALLOCATOR: allocated * sums.fragmentation})
        return sqrt(inner), sqrt(outer), sqrt(outer + belief.variance(sums.outside))
    seen[ALLOCATOR] = allocated * sums.fragmentation
    reserved = belief.variance(seen) + own
    return sqrt(inner), sqrt(reserved), sqrt(belief.variance({**seen, **sums.outside}) + own)


def _components(sums: Ledger, parts: dict[str, float], overhead: float, belief: Belief) -> tuple[Component, ...]:
    common, width, scale = belief.common, belief.width, belief.scale
    sizes = [(name, size * common * scale(name)) for name, size in parts.items() if size]
    sizes.append((ALLOCATOR, overhead))
    sizes += [(name, size * scale(name)) for name, size in sums.outside.items()]
    return tuple([Component(name, around(size, width(name) * size)) for name, size in sizes])
