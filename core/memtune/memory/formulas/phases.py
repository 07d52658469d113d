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
    DRIVER_OVERHEAD,
    EVALUATION,
    FIRST_STEP,
    INIT,
    LOSS,
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
# The 95% quantile of a uniform distribution, from its middle, as a share of half its width.
_UNIFORM_BOUND = 0.9
# Packing uncertainty, split into the part shared by all plans of a job and each plan's own: emulated runs of one model
# under several plans are off by about as much as those of different models.
_SHARED, _OWN = 0.44, 0.9


# A term inside the allocator: its name, fixed bytes, bytes per sample, and phases.
_Addend = tuple[str, float, float, tuple[int, ...]]


class _Phase(NamedTuple):
    """A phase: its components, those that are counted and what is cached, fixed and per sample; the metrics' widths.

    ``kept`` is cached beyond the phase, ``unfreed`` what the allocator cannot give back of it.
    """

    parts: dict[str, tuple[float, float]]
    counted: tuple[float, float]
    kept: tuple[float, float]
    unfreed: tuple[float, float]
    allocated: Square
    reserved: Square
    device: Square
    needed: Square


@dataclass(frozen=True)
class Ledger:
    """The terms of a family of plans, and their believed sums per phase: fixed bytes and bytes per sample.

    ``highest`` sums each component at the training phase where it is largest; ``logits`` are the loss's, ``flat`` the
    step's tensors, and ``cut`` those that the first step cuts from the loss's blocks, if ``packing`` counts them.
    ``packing`` says what the allocator reserves beyond what is allocated, ``needs`` what it cannot give back. Released
    weights that kernels may still use are ``behind``.
    ``largest`` are the bytes of the largest tensors, which give its lower bound; None if a replay has placed every
    tensor.
    """

    addends: Sequence[_Addend]
    sums: Sequence[tuple[float, float]]
    highest: tuple[float, float]
    logits: tuple[float, float]
    flat: tuple[float, float]
    cut: Cut | None
    overhead: dict[str, float]
    overhead_bytes: float
    packing: Packing
    needs: Packing
    behind: float
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
        """Bytes cached beyond those of a phase because the loss requests its blocks again."""
        if self.cut is None or not packing.anew or phase in (INIT, EVALUATION, SAVE):
            return 0.0
        fixed, slope = self.sums[phase]
        return packing.anew * max(self.cut.peak(micro_batch) - fixed - slope * micro_batch, 0.0)

    def floor(self, phase: int, micro_batch: int) -> float:
        """The least memory of a phase before any measurement: its counted bytes."""
        if not self.belief.job_width:
            return 0.0
        fixed, slope = self.phase(phase).counted
        return (fixed + slope * micro_batch) * max(1 - hypot(_UNSURE_OF_COUNTED, self.unknown), 0.0)

    def reserved(self, phase: int, micro_batch: int, cannot_be_freed: bool = False) -> Reserved:
        """Bytes that the allocator reserves for the believed bytes of a phase, or only those that cannot be freed."""
        found = self.phase(phase)
        packing, (still, moving) = (self.needs, found.unfreed) if cannot_be_freed else (self.packing, found.kept)
        fixed, slope = self.sums[phase]
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
        # Between none and all of the released weights are still in use: the middle is expected, and any part is as
        # likely as another.
        behind = 0.0 if cannot_be_freed or phase in (INIT, EVALUATION, SAVE) else self.behind / 2
        size, unsure = allocated + cached + short + behind, _UNSURE_OF_SEGMENTS * short
        return Reserved(size, unsure, own, _UNIFORM_BOUND * behind, least, more, floor)

    def _phase(self, phase: int) -> _Phase:
        parts: dict[str, tuple[float, float]] = {}
        for name, fixed, slope, phases in self.addends:
            if phase in phases:
                before = parts.get(name, (0.0, 0.0))
                parts[name] = before[0] + fixed, before[1] + slope
        total = self.sums[phase]
        counted = [size for name, size in parts.items() if name in COUNTED]
        kept, unfreed = self.cached(phase, self.packing), self.cached(phase, self.needs)
        sizes = parts, (sum(size[0] for size in counted), sum(size[1] for size in counted)), kept, unfreed
        inside = {**parts, UNMODELLED: _estimated(parts, self.belief)}
        cached, needed = {ALLOCATOR: _doubted(kept, self.packing)}, {ALLOCATOR: _doubted(unfreed, self.needs)}
        overhead = {name: (size, 0.0) for name, size in self.overhead.items()}
        variance = self.belief.variance
        # Errors of no component: each plan's own noise, and what the plan's source leaves open.
        own = Square(self.noise * total[0] ** 2, 2 * self.noise * total[0] * total[1], self.noise * total[1] ** 2)
        allocated = variance(inside, own)
        if self.belief.correlated:
            reserved = variance({**inside, **cached}, own)
            device, needs = (variance({**inside, **each, **overhead}, own) for each in (cached, needed))
        else:
            reserved = variance(cached, allocated)
            device, needs = variance(overhead, reserved), variance(overhead, variance(needed, allocated))
        return _Phase(*sizes, allocated, reserved, device, needs)


def _doubted(cached: tuple[float, float], packing: Packing) -> tuple[float, float]:
    """The part of what is cached by a packing whose error all plans share."""
    doubt = _SHARED * packing.doubt
    return cached[0] * doubt, cached[1] * doubt


class Reserved(NamedTuple):
    """Reserved bytes, and how far partly filled segments and packing may move them in each plan.

    ``behind`` is the half-width of the released weights that kernels still use. ``least`` assumes full segments and
    none of those; ``more`` is the size of the segments of one undescribed tensor. ``floor`` is what there is in any
    case.
    """

    bytes: float
    segments: float
    packing: float
    behind: float
    least: float
    more: float
    floor: float

    @property
    def unsure(self) -> float:
        """The part of the uncertainty that no other plan can reduce."""
        return hypot(self.segments, self.packing, self.behind)

    def interval(self, width: float, job_width: float, overhead: float = 0.0) -> Interval:
        """The interval with the bytes of ``overhead`` outside the allocator, given the ``width`` that plans share.

        ``job_width`` is relative to what the allocator is expected to reserve, and upwards only.
        """
        expected, job = self.bytes + overhead, job_width * self.bytes
        upper = max(expected, 0.0) + hypot(width, self.segments, self.packing, self.more, self.behind, job)
        lower = _below(self.least + overhead, hypot(width, self.packing))
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
    behind: float = 0.0,
) -> Ledger:
    """Sum a recipe's terms; those of its micro-batch are per sample. ``blocks`` are those of the loss."""
    addends: list[_Addend] = []
    fixed, slopes = [0.0] * len(PHASES), [0.0] * len(PHASES)
    common, scale = belief.common, belief.scale
    for name, size, phases, _, _, _, scales in terms:
        if name in DRIVER_OVERHEAD:
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
    overhead = {term.name: term.bytes for term in terms if term.name in DRIVER_OVERHEAD}
    unknown = recipe.unknowns * constants.unknown_widening
    sums = list(zip(fixed, slopes, strict=True))
    highest = _highest(addends, belief)
    return Ledger(
        addends,
        sums,
        highest=(sum(each[0] for each in highest.values()), sum(each[1] for each in highest.values())),
        logits=highest.get("logits", (0.0, 0.0)),
        flat=highest.get("step transients", (0.0, 0.0)),
        cut=_cut(addends, sums, blocks, belief) if packing.anew else None,
        overhead=overhead,
        overhead_bytes=sum(size * belief.scale(name) for name, size in overhead.items()),
        packing=packing,
        needs=needs,
        behind=behind,
        rounding=constants.rounding,
        unknown=unknown,
        noise=constants.noise**2 + unknown**2 + belief.doubt**2,
        belief=belief,
        constants=constants,
        largest=largest,
    )


def _cut(addends: Iterable[_Addend], sums: Sequence[tuple[float, float]], blocks: LossBlocks, belief: Belief) -> Cut:
    """The tensors that the first step cuts from the loss's blocks. At its loss there are no moments and no gradients
    yet.
    """
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


def _highest(addends: Iterable[_Addend], belief: Belief) -> dict[str, tuple[float, float]]:
    """Each component's believed bytes at the training phase where it is largest, fixed and per sample."""
    sizes: dict[str, tuple[list[float], list[float]]] = {}
    for name, fixed, slope, phases in addends:
        if (of_name := sizes.get(name)) is None:
            of_name = sizes[name] = [0.0] * len(PHASES), [0.0] * len(PHASES)
        size, added = (slope, of_name[1]) if slope else (fixed, of_name[0])
        for phase in phases:
            if phase not in (INIT, EVALUATION, SAVE):
                added[phase] += size
    found = {}
    for name, (fixed_bytes, slopes) in sizes.items():
        scale = belief.scale(name) * (1 if name in COUNTED else belief.common)
        found[name] = scale * max(fixed_bytes), scale * max(slopes)
    return found


def peaks(sums: Ledger, micro_batch: int) -> Peaks:
    """Describe the phase that peaks highest at a micro-batch."""
    totals = sums.totals(micro_batch)
    requested = max(totals)
    index = totals.index(requested)
    phase = sums.phase(index)
    allocated, overhead = requested * (1 + sums.rounding), sums.overhead_bytes
    held = sums.reserved(index, micro_batch)
    width = phase.allocated.root(micro_batch)
    job_width = sums.belief.job_width
    device = held.interval(phase.device.root(micro_batch), job_width, overhead)
    return Peaks(
        phase=PHASES[index],
        phase_breakdown=partial(_phase_intervals, sums, micro_batch),
        breakdown=partial(_components, sums, phase, micro_batch, requested, held),
        requested=around(requested, width, held.floor, job_width * requested),
        allocated=around(allocated, width, held.floor, job_width * allocated),
        reserved=held.interval(phase.reserved.root(micro_batch), job_width),
        device=device,
        needed=_needed(sums, index, micro_batch, device),
        job_width_bytes=job_width * held.bytes,
    )


def _needed(sums: Ledger, phase: int, micro_batch: int, device: Interval) -> Interval:
    """The least memory that suffices: never more than the peak."""
    least = sums.reserved(phase, micro_batch, cannot_be_freed=True)
    width = sums.phase(phase).needed.root(micro_batch)
    found = least.interval(width, sums.belief.job_width, sums.overhead_bytes)
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
        still, moving = sums.phase(phase).kept
        found[ALLOCATOR] = _SHARED * sums.packing.doubt * (still + moving * micro_batch)
    if metric == "device":
        found.update(sums.overhead)
    return found


def _estimated(parts: Mapping[str, tuple[float, float]], belief: Belief) -> tuple[float, float]:
    """The fixed bytes and bytes per sample of estimated components, to which unmodelled memory is relative."""
    scales = {name: belief.scale(name) for name in parts if name not in COUNTED}
    fixed = sum(scale * parts[name][0] for name, scale in scales.items())
    return fixed, sum(scale * parts[name][1] for name, scale in scales.items())


def around(expected: float, half_width: float, floor: float = 0.0, above: float = 0.0) -> Interval:
    """An interval with equal ratios below and above, so that it never reaches zero, and from the floor on.

    The half-width ``above`` is upwards only.
    """
    if expected <= _TINY:
        return Interval(0.0, 0.0, half_width)
    upper = expected + hypot(half_width, above)
    return Interval(min(max(_below(expected, half_width), floor), expected), expected, upper)


def _below(expected: float, half_width: float) -> float:
    """The lower bound of an interval with equal ratios below and above."""
    return expected * expected / (expected + half_width) if expected > _TINY else 0.0


def _phase_intervals(sums: Ledger, micro_batch: int) -> dict[str, Interval]:
    held = [sums.reserved(index, micro_batch) for index in range(len(PHASES))]
    return {
        name: each.interval(sums.phase(index).device.root(micro_batch), sums.belief.job_width, sums.overhead_bytes)
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
    return (*_believed(inside, belief), allocator, *_believed(sums.overhead.items(), belief))


def _believed(sizes: Iterable[tuple[str, float]], belief: Belief) -> Iterator[Component]:
    """Believed components. Errors are relative to the formulas, not to the correction."""
    for name, size in sizes:
        yield Component(name, around(size * belief.scale(name), belief.width(name) * size))
