"""The errors of predicted step times, and how measured steps correct them.

A step is a sum of parts, and all plans share the error of each part: a link that is slower than its data sheet slows
every plan in proportion to its traffic, and an optimizer's kernels slow its plans in proportion to its step. Other
errors belong to each knob's choice, or to each plan. Errors are logarithms with Gaussian priors, so that step times are
a Gaussian process over plans; measurements update it as a Kalman filter, linearized around its own result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memtune.memory.prediction import BOUND, Belief, Interval
from memtune.memory.speed import TRUST
from memtune.plans.plan import Plan

# Half-widths of the 95% bounds of the errors' logarithms. Chosen with published runs of one job in view: sharding
# with fsdp_qlora's in bench/data/measured_sweeps.csv, checkpointing with llm-foundry's in bench/results/throughput.md.
_PARTS = {"launch": 0.8, "links": 0.8, "transfer": 0.8, "reduce": 0.5, "step": 0.5}
_KNOBS = {
    "precision": 0.15,
    "sharding": 0.12,
    "checkpointing": 0.15,
    "offload": 0.15,
    "attention": 0.15,
    "fused_loss": 0.15,
    "expandable_segments": 0.1,
}
# An optimizer has kernels of its own, from one fused launch to many small ones; its bytes do not show that.
_STEP, _OPTIMIZER = "step", 0.8
_OWN = 0.06
# The common factor is whatever the first measurement says: a GPU may be throttled, or not the one it is taken for.
# Another version of torch or the driver changes all stale measurements alike, and each of them by itself.
_ALL, _VERSION, _COUNTS = "all plans", "version", "counts"
STALE_SPEED_ERROR = 0.10
# The error of a step time from operations (core/memtune/gpus/operations.py), common to all plans of a job, and of each
# plan. Set by hand; bench/results/throughput.md says how many published runs they hold.
_COUNTED, _COUNTED_ERROR = 0.18, 0.06
_WIDTHS = {**_PARTS, _ALL: 10.0, _VERSION: 0.2, _COUNTS: _COUNTED}
# Probes of one plan repeat to within this.
_NOISE = 0.03
_ROUNDS = 3
# How far the spread of the errors may be scaled up if measurements differ more than it allows.
_MOST_SURPRISE = 4.0


class Timed(NamedTuple):
    """A measured step: the plan, its predicted parts in seconds, and the seconds it took.

    A ``stale`` one is of other versions of torch or the driver. A ``counted`` one was not timed: it is what its
    operations take.
    """

    plan: Plan
    parts: Mapping[str, float]
    seconds: float
    stale: bool = False
    counted: bool = False


class SpeedErrors:
    """A belief about the errors of step times, of which at least one was measured."""

    def __init__(self, timed: Sequence[Timed]) -> None:
        names = {_VERSION, _COUNTS, *(name for each in timed for name in _linear(each.plan, each.parts, {})[1])}
        prior = Belief({}, {(name, name): _width(name) ** 2 for name in names})
        self._belief, self._surprise = prior, 1.0
        for _ in range(_ROUNDS):
            self._belief, self._surprise = _learned(prior, self._belief, timed)

    def factor(self, plan: Plan, parts: Mapping[str, float]) -> Interval:
        """The factor of a plan's predicted step time, which is the sum of its parts."""
        belief = self._belief
        moved, reach = _linear(plan, parts, belief.means)
        expected = math.exp(moved)
        new = sum((_width(name) * share) ** 2 for name, share in reach.items() if not belief.knows(name))
        width = math.sqrt(belief.squared({n: s for n, s in reach.items() if belief.knows(n)}) + new) * self._surprise
        most = 1 + min(math.expm1(width), TRUST)
        return Interval(expected / most, expected, expected * most)


def _learned(prior: Belief, around: Belief, timed: Sequence[Timed]) -> tuple[Belief, float]:
    """The belief after all measurements, and by which factor they are farther apart than the prior says."""
    belief, surprises = prior, list[float]()
    for plan, parts, seconds, stale, counted in timed:
        moved, reach = _linear(plan, parts, around.means)
        noise = _NOISE**2
        if stale:
            moved += around.means.get(_VERSION, 0.0)
            reach[_VERSION] = 1.0
            noise += STALE_SPEED_ERROR**2
        if counted:
            moved += around.means.get(_COUNTS, 0.0)
            reach[_COUNTS] = 1.0
            noise += _COUNTED_ERROR**2
        predicted = moved + belief.moved(reach, around)
        off = math.log(seconds / sum(parts.values())) - predicted
        surprises.append(BOUND**2 * off * off / (belief.squared(reach) + noise))
        belief = belief.updated(reach, off, noise)
    # The first one gives the common factor.
    scale = math.sqrt(sum(surprises[1:]) / max(len(surprises) - 1, 1))
    return belief, min(max(scale, 1.0), _MOST_SURPRISE)


def _linear(plan: Plan, parts: Mapping[str, float], means: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """The logarithm of a step's time over its predicted one with errors at their means, and how much each moves it."""
    names, of_parts = _names(plan), {name: _names_of_part(name, plan) for name in parts}
    off = {name: math.exp(sum(means.get(each, 0.0) for each in errors)) for name, errors in of_parts.items()}
    now = {name: seconds * off[name] for name, seconds in parts.items()}
    total = sum(now.values())
    moved = math.log(total / sum(parts.values())) + sum(means.get(name, 0.0) for name in names)
    shares = {each: now[name] / total for name, errors in of_parts.items() if now[name] for each in errors}
    return moved, {**shares, **dict.fromkeys(names, 1.0)}


def _names_of_part(name: str, plan: Plan) -> list[str]:
    """The errors of a part of the step: none of the computation's, which the common factor and the knobs have."""
    if name not in _PARTS:
        return []
    return [name, f"{name}:{plan.optimizer}"] if name == _STEP else [name]


def _names(plan: Plan) -> list[str]:
    return [_ALL, *(f"{knob}:{getattr(plan, knob)}" for knob in _KNOBS), str(plan)]


def _width(name: str) -> float:
    knob, is_knob, _ = name.partition(":")
    if is_knob:
        return _OPTIMIZER if knob == _STEP else _KNOBS[knob]
    return _WIDTHS.get(name, _OWN)
