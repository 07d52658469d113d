"""Sums the terms per phase, finds the phase that peaks, and computes its interval.

The peak is the maximum over phases, never the sum of all terms. A term is fixed or proportional to the micro-batch, so
a family of plans that differ only in their micro-batch is summed once, in its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import hypot
from typing import NamedTuple

from memtune.memory.constants import Constants
from memtune.memory.formulas.packing import (
    OF_ACTIVATIONS,
    ONE_MORE_EACH,
    Cut,
    LossBlocks,
    Packing,
    unused_bytes,
    whole_segments,
)
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.terms import (
    BACKWARD,
    EVALUATION,
    FIRST_STEP,
    INIT,
    LOSS,
    OUTSIDE,
    PHASES,
    SAVE,
    STEP,
    Term,
)
from memtune.memory.prediction import UNMODELLED, Belief, Component, Interval, Square

ALLOCATOR = "allocator"
_NO_BLOCKS = LossBlocks()
# Components that are counted rather than estimated: parameters times bytes, and a constant.
COUNTED = frozenset({"weights", "adapter", "master weights", "gradients", "optimizer states", "workspace"})
_TINY = 1e-9
# The error of the unused bytes in segments that are not full, as a share of them.
_UNSURE_OF_SEGMENTS = 0.6
# The error of what is counted: the width of gradients, the least sure of it.
_UNSURE_OF_COUNTED = 0.04
# Packing uncertainty, split into the part shared by all plans of a job and each plan's own: emulated runs of one model
# under several plans are off by about as much as those of different models.
_SHARED, _OWN = 0.44, 0.9


# A term inside the allocator: its name, fixed bytes, bytes per sample, and phases.
_Addend = tuple[str, float, float, tuple[int, ...]]


class _Phase(NamedTuple):
    """A phase: its components, fixed and per sample, and the widths of the metrics."""

    parts: dict[str, tuple[float, float]]
    allocated: Square
    reserved: Square
    device: Square
    needed: Square


@dataclass(frozen=True)
class Ledger:
    """The terms of a family of plans, and their believed sums per phase: fixed bytes and bytes per sample.

    ``highest`` sums each component at the training phase where it is largest; ``logits`` are the loss's, ``flat`` the
    step's tensors, and ``cut`` those that the first step cuts from the loss's blocks, if ``packing`` counts them.
    ``packing`` says what the allocator reserves beyond what is allocated, ``needs`` what it cannot give back.
    ``largest`` are the bytes of the largest tensors, which give its lower bound; None if a replay has placed every
    tensor.
    """

    addends: Sequence[_Addend]
    sums: Sequence[tuple[float, float]]
    highest: tuple[float, float]
    logits: tuple[float, float]
    flat: tuple[float, float]
    cut: Cut | None
    outside: dict[str, float]
    outside_bytes: float
    packing: Packing
    needs: Packing
    rounding: float
    noise: float
    unknown: float
    belief: Belief
    constants: Constants
    largest: tuple[float, float] | None
    _phases: dict[int, _Phase] = field(default_factory=dict)

    def phase(self, phase: int) -> _Phase:
        """A phase in detail, computed on demand: few phases ever peak."""
        if phase not in self._phases:
            self._phases[phase] = self._phase(phase)
        return self._phases[phase]

    def totals(self, micro_batch: int) -> list[float]:
        """The believed bytes of each phase."""
        return [fixed + slope * micro_batch for fixed, slope in self.sums]

    def cached(self, phase: int, packing: Packing) -> tuple[float, float]:
        """Bytes cached beyond those of a phase, fixed and per sample, before the belief is applied, without `anew`."""
        share, unfit, loss, flat, *_ = packing
        fixed, slope = self.sums[phase]
        still, moving = share * fixed, share * slope
        if phase not in (INIT, EVALUATION, SAVE):
            still += unfit * (self.highest[0] - fixed) + loss * self.logits[0] + flat * self.flat[0]
            moving += unfit * (self.highest[1] - slope) + loss * self.logits[1] + flat * self.flat[1]
        return still * (1 + self.rounding), moving * (1 + self.rounding)

    def anew(self, phase: int, micro_batch: int, packing: Packing) -> float:
        """Bytes cached beyond those of a phase because the loss requests its blocks anew."""
        if self.cut is None or phase in (INIT, EVALUATION, SAVE):
            return 0.0
        fixed, slope = self.sums[phase]
        return packing.anew * max(self.cut.peak(micro_batch) - fixed - slope * micro_batch, 0.0)

    def floor(self, phase: int, micro_batch: int) -> float:
        """What a phase takes at least, whatever a job of which nothing was measured does otherwise: what is counted."""
        if not self.belief.job_width:
            return 0.0
        parts = self.phase(phase).parts
        counted = (fixed + slope * micro_batch for name, (fixed, slope) in parts.items() if name in COUNTED)
        return sum(counted) * max(1 - hypot(_UNSURE_OF_COUNTED, self.unknown), 0.0)

    def reserved(self, phase: int, micro_batch: int, packing: Packing | None = None) -> Reserved:
        """What the allocator reserves for the believed bytes of a phase, or keeps by another packing."""
        packing = packing or self.packing
        (fixed, slope), (still, moving) = self.sums[phase], self.cached(phase, packing)
        allocated = (fixed + slope * micro_batch) * (1 + self.rounding)
        corrected = max(1 + _SHARED * packing.doubt * self.belief.means.get(ALLOCATOR, 0.0), 0.0)
        linear, anew = corrected * (still + moving * micro_batch), self.anew(phase, micro_batch, packing)
        cached = linear + anew
        short, least = 0.0, allocated + cached
        if self.largest is not None:
            still, moving = self.largest
            largest = max(still, moving * micro_batch)
            short = max(unused_bytes(largest, self.constants) - cached, 0.0)
            # As if segments were full, but in whole segments; a tensor near the limit may be below it.
            least = max(least, min(whole_segments(largest / 2), least + short))
        more = max(ONE_MORE_EACH - cached - short, 0.0)
        own = packing.doubt * (_OWN * linear + anew)
        floor = self.floor(phase, micro_batch)
        return Reserved(allocated + cached + short, _UNSURE_OF_SEGMENTS * short, own, least, more, floor)

    def _phase(self, phase: int) -> _Phase:
        parts: dict[str, tuple[float, float]] = {}
        for name, fixed, slope, phases in self.addends:
            if phase in phases:
                before = parts.get(name, (0.0, 0.0))
                parts[name] = before[0] + fixed, before[1] + slope
        total = self.sums[phase]
        inside = {**parts, UNMODELLED: _estimated(parts, self.belief)}
        cached, needed = ({ALLOCATOR: self._doubted(phase, each)} for each in (self.packing, self.needs))
        outside = {name: (size, 0.0) for name, size in self.outside.items()}
        variance = self.belief.variance
        # Errors of no component: each plan's own noise, and what the plan's source leaves open.
        own = Square(self.noise * total[0] ** 2, 2 * self.noise * total[0] * total[1], self.noise * total[1] ** 2)
        allocated = variance(inside, own)
        if self.belief.correlated:
            reserved = variance({**inside, **cached}, own)
            device, needs = (variance({**inside, **each, **outside}, own) for each in (cached, needed))
            return _Phase(parts, allocated, reserved, device, needs)
        reserved = variance(cached, allocated)
        return _Phase(
            parts, allocated, reserved, variance(outside, reserved), variance(outside, variance(needed, allocated))
        )

    def _doubted(self, phase: int, packing: Packing) -> tuple[float, float]:
        """The part of what is cached by a packing whose error all plans share."""
        still, moving = self.cached(phase, packing)
        doubt = _SHARED * packing.doubt
        return still * doubt, moving * doubt


class Reserved(NamedTuple):
    """Reserved bytes, and how far partly filled segments and packing may move them in each plan.

    ``least`` assumes full segments; ``more`` is the size of the segments of one undescribed tensor. ``floor`` is what
    there is in any case.
    """

    bytes: float
    segments: float
    packing: float
    least: float
    more: float
    floor: float

    @property
    def unsure(self) -> float:
        """The part of the uncertainty that no other plan can reduce."""
        return hypot(self.segments, self.packing)

    def interval(self, width: float, outside: float = 0.0) -> Interval:
        """The interval with the bytes ``outside`` the allocator, given the ``width`` that plans share."""
        expected = self.bytes + outside
        upper = around(expected, hypot(width, self.unsure, self.more)).upper
        lower = around(self.least + outside, hypot(width, self.packing)).lower
        return Interval(min(max(lower, self.floor), expected), expected, upper)


class Peaks(NamedTuple):
    """Everything that a prediction says about bytes."""

    phase: str
    phase_breakdown: Callable[[], dict[str, Interval]]
    breakdown: Callable[[], tuple[Component, ...]]
    requested: Interval
    allocated: Interval
    reserved: Interval
    device: Interval
    needed: Interval
    job_width_bytes: float


def ledger(
    terms: Sequence[Term],
    recipe: Recipe,
    constants: Constants,
    belief: Belief,
    largest: tuple[float, float] | None,
    packing: Packing,
    needs: Packing,
    blocks: LossBlocks = _NO_BLOCKS,
) -> Ledger:
    """Sum a recipe's terms; those of its micro-batch are per sample. ``blocks`` are those of the loss."""
    addends: list[_Addend] = []
    fixed, slopes = [0.0] * len(PHASES), [0.0] * len(PHASES)
    common, scale = belief.common, belief.scale
    for name, size, phases, _, _, _, scales in terms:
        if name in OUTSIDE:
            continue
        if scales:
            size, added = size / recipe.micro_batch, slopes
            addends.append((name, 0.0, size, phases))
        else:
            added = fixed
            addends.append((name, size, 0.0, phases))
        believed = scale(name) * size * (1 if name in COUNTED else common)
        for phase in phases:
            added[phase] += believed
    outside = {term.name: term.bytes for term in terms if term.name in OUTSIDE}
    unknown = recipe.unknowns * constants.unknown_widening
    sums = list(zip(fixed, slopes, strict=True))
    return Ledger(
        addends,
        sums,
        highest=_highest(addends, belief),
        logits=_highest([each for each in addends if each[0] == "logits"], belief),
        flat=_highest([each for each in addends if each[0] == "step transients"], belief),
        cut=_cut(addends, sums, blocks, belief) if packing.anew else None,
        outside=outside,
        outside_bytes=sum(size * belief.scale(name) for name, size in outside.items()),
        packing=packing,
        needs=needs,
        rounding=constants.rounding,
        unknown=unknown,
        noise=constants.noise**2 + unknown**2 + belief.doubt**2 + belief.job_width**2,
        belief=belief,
        constants=constants,
        largest=largest,
    )


def _cut(addends: Iterable[_Addend], sums: Sequence[tuple[float, float]], blocks: LossBlocks, belief: Belief) -> Cut:
    """What the first step cuts from the loss's blocks. At its loss there are no moments and no gradients yet."""
    there, taken, holes, logits, workspace = ([0.0, 0.0] for _ in range(5))
    for name, fixed, slope, phases in addends:
        if name in ("optimizer states", "gradients") and INIT not in phases:
            added = [(there, LOSS, 1.0), (taken, STEP, 1.0)]
        elif name == "layer in backward":
            added = [(there, BACKWARD, -1.0), (holes, BACKWARD, 1.0)]
        elif name == "activations":
            added = [(holes, LOSS, OF_ACTIVATIONS)]
        elif name in ("logits", "workspace"):
            added = [(logits if name == "logits" else workspace, LOSS, 1.0)]
        else:
            continue
        scale = belief.scale(name) * (1 if name in COUNTED else belief.common)
        for sizes, phase, part in added:
            if phase in phases:
                sizes[0] += part * scale * fixed
                sizes[1] += part * scale * slope
    loss = sums[LOSS]
    return Cut(
        first=(loss[0] - there[0], loss[1] - there[1]),
        steps=(sums[FIRST_STEP], sums[STEP]),
        spilt=(taken[0] - holes[0], taken[1] - holes[1]),
        loss=(logits[0], logits[1]),
        workspace=workspace[0] / 2,
        blocks=blocks,
    )


def _highest(addends: Iterable[_Addend], belief: Belief) -> tuple[float, float]:
    """The sum of each component's believed bytes at the training phase where it is largest."""
    sizes: dict[str, list[list[float]]] = {}
    for name, fixed, slope, phases in addends:
        of_name = sizes.setdefault(name, [[0.0] * len(PHASES), [0.0] * len(PHASES)])
        for phase in phases:
            if phase not in (INIT, EVALUATION, SAVE):
                of_name[0][phase] += fixed
                of_name[1][phase] += slope
    still = moving = 0.0
    for name, (fixed_bytes, slopes) in sizes.items():
        scale = belief.scale(name) * (1 if name in COUNTED else belief.common)
        still += scale * max(fixed_bytes)
        moving += scale * max(slopes)
    return still, moving


def peaks(sums: Ledger, micro_batch: int) -> Peaks:
    """Describe the phase that peaks highest at a micro-batch."""
    totals = sums.totals(micro_batch)
    requested = max(totals)
    index = totals.index(requested)
    phase = sums.phase(index)
    allocated, outside = requested * (1 + sums.rounding), sums.outside_bytes
    held = sums.reserved(index, micro_batch)
    width = phase.allocated.root(micro_batch)
    device = held.interval(phase.device.root(micro_batch), outside)
    return Peaks(
        phase=PHASES[index],
        phase_breakdown=partial(_phase_intervals, sums, micro_batch),
        breakdown=partial(_components, sums, phase, micro_batch, requested, held),
        requested=_raised(around(requested, width), held.floor),
        allocated=_raised(around(allocated, width), held.floor),
        reserved=held.interval(phase.reserved.root(micro_batch)),
        device=device,
        needed=_needed(sums, index, micro_batch, device),
        job_width_bytes=sums.belief.job_width * requested,
    )


def _needed(sums: Ledger, phase: int, micro_batch: int, device: Interval) -> Interval:
    """The least memory that suffices: never more than the peak."""
    least = sums.reserved(phase, micro_batch, sums.needs)
    found = least.interval(sums.phase(phase).needed.root(micro_batch), sums.outside_bytes)
    return Interval(*map(min, found, device))


def sensitivities(sums: Ledger, micro_batch: int, metric: str) -> dict[str, float]:
    """The change in bytes of a metric per unit of each component's relative error."""
    totals = sums.totals(micro_batch)
    requested, common = max(totals), sums.belief.common
    rounded = 1 + sums.rounding
    phase = totals.index(requested)
    factor = rounded if metric == "allocated" else rounded * (1 + sums.packing.share)
    parts = sums.phase(phase).parts
    found = {
        name: (fixed + slope * micro_batch) * factor * (1 if name in COUNTED else common)
        for name, (fixed, slope) in parts.items()
    }
    fixed, slope = _estimated(parts, sums.belief)
    found[UNMODELLED] = (fixed + slope * micro_batch) * factor
    if metric != "allocated":
        still, moving = sums.cached(phase, sums.packing)
        found[ALLOCATOR] = _SHARED * sums.packing.doubt * (still + moving * micro_batch)
    if metric == "device":
        found.update(sums.outside)
    return found


def _estimated(parts: Mapping[str, tuple[float, float]], belief: Belief) -> tuple[float, float]:
    """The fixed bytes and bytes per sample of estimated components, to which unmodelled memory is relative."""
    scales = {name: belief.scale(name) for name in parts if name not in COUNTED}
    fixed = sum(scale * parts[name][0] for name, scale in scales.items())
    return fixed, sum(scale * parts[name][1] for name, scale in scales.items())


def around(expected: float, half_width: float) -> Interval:
    """An interval with equal ratios below and above, so that it never reaches zero."""
    if expected <= _TINY:
        return Interval(0.0, 0.0, half_width)
    return Interval(expected * expected / (expected + half_width), expected, expected + half_width)


def _raised(interval: Interval, floor: float) -> Interval:
    return interval._replace(lower=min(max(interval.lower, floor), interval.expected))


def _phase_intervals(sums: Ledger, micro_batch: int) -> dict[str, Interval]:
    held = [sums.reserved(index, micro_batch) for index in range(len(PHASES))]
    return {
        name: each.interval(sums.phase(index).device.root(micro_batch), sums.outside_bytes)
        for index, (name, each) in enumerate(zip(PHASES, held, strict=True))
    }


def _components(
    sums: Ledger, phase: _Phase, micro_batch: int, requested: float, held: Reserved
) -> tuple[Component, ...]:
    belief = sums.belief
    overhead = held.bytes - requested
    parts = {name: fixed + slope * micro_batch for name, (fixed, slope) in phase.parts.items()}
    inside = [(name, size * (1 if name in COUNTED else belief.common)) for name, size in parts.items() if size]
    allocator = Component(ALLOCATOR, around(overhead, belief.width(ALLOCATOR) * sums.packing.doubt * overhead))
    return (*_believed(inside, belief), allocator, *_believed(sums.outside.items(), belief))


def _believed(sizes: Iterable[tuple[str, float]], belief: Belief) -> Iterator[Component]:
    """Believed components. Errors are relative to the formulas, not to the correction."""
    for name, size in sizes:
        yield Component(name, around(size * belief.scale(name), belief.width(name) * size))
