"""Calibration: measured peaks correct the model by component, and narrow or widen its intervals.

A prediction is a sum of components, each with a relative error that all plans of a workload share. A measurement of
that sum updates the belief about every error at once (a Kalman filter: Kalman 1960, equations 21 to 25). Plans that
differ in micro-batch separate activations from states, so two probes determine a slope and an intercept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memtune.memory.constants import DEFAULT_CONSTANTS
from memtune.memory.formulas.phases import ALLOCATOR
from memtune.memory.prediction import Belief
from memtune.memory.predictor import Calibration, Predictor
from memtune.memory.speed_errors import SpeedErrors, Timed
from memtune.memory.workload import Workload
from memtune.plans.plan import Plan

# Probes of one plan repeat to within about 1% (half-width of the 95% bound, relative). Add to it the error that each
# plan has of its own.
_NOISE = math.hypot(0.01, DEFAULT_CONSTANTS.noise)
# Another version of torch or the driver counts as the same until one plan's peak differs by more than this share.
STALE_ERROR = 0.05
# Rounds until the belief converges.
_ROUNDS = 3
# Fractions of the correction to try until no measured plan gets worse. At 0 the means stay, and the measurements still
# narrow the intervals around them.
_DAMPING = (1.0, 0.75, 0.5, 0.25, 0.1, 0.0)


@dataclass(frozen=True)
class Measurement:
    """The peaks that one run of a plan showed; what was not measured is 0. A ``stale`` one counts less.

    The seconds of a ``counted`` one are those of the operations that an emulated run asked of its GPU.
    """

    plan: Plan
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    device_bytes: int = 0
    step_seconds: float = 0.0
    stale: bool = False
    counted: bool = False

    def __post_init__(self) -> None:
        if min(self.allocated_bytes, self.reserved_bytes, self.device_bytes, self.step_seconds) < 0:
            raise ValueError(f"measurement of {self.plan}: peaks and seconds must not be negative")
        if not (self.allocated_bytes or self.reserved_bytes or self.device_bytes):
            raise ValueError(f"measurement of {self.plan}: give allocated, reserved or device bytes")

    @property
    def peaks(self) -> tuple[tuple[str, int], ...]:
        """The measured peaks by metric."""
        peaks = ("allocated", self.allocated_bytes), ("reserved", self.reserved_bytes), ("device", self.device_bytes)
        return tuple((metric, size) for metric, size in peaks if size)


def calibrate(workload: Workload, measurements: Sequence[Measurement]) -> Calibration:
    """Correct the model of a workload by its measurements."""
    if not measurements:
        raise ValueError("calibration needs at least one measurement")
    plain = Predictor(workload)
    plain = Predictor(workload, Calibration(plain.belief.measured(), None))
    full = _learned(plain, measurements)
    speed = _speed(plain, measurements)
    judged = _judged(measurements)
    before = _misses(plain, judged)
    for share in _DAMPING:
        found = Calibration(plain.belief.towards(full, share), speed)
        after = _misses(Predictor(workload, found), judged)
        if all(abs(new) <= abs(old) for (new, *_), (old, *_) in zip(after, before, strict=True)):
            break
    # Misfit beyond noise is model error: other plans may be off by as much.
    misfit = max(max(abs(miss) - unsure, 0.0) / expected for miss, expected, unsure in after)
    return found if misfit <= _NOISE else Calibration(found.belief.doubted(misfit), speed)


def _judged(measurements: Sequence[Measurement]) -> Sequence[Measurement]:
    """The measurements that a correction must not make worse: those that are not stale, if there are any."""
    return [measurement for measurement in measurements if not measurement.stale] or measurements


def _learned(plain: Predictor, measurements: Sequence[Measurement]) -> Belief:
    """The belief after all measurements.

    Peaks are not linear in the errors, so each round linearizes again around the result of the round before.
    """
    belief = plain.belief
    # Stale ones may all be off the same way, so that all of them together tell no more than one.
    doubt = STALE_ERROR * math.sqrt(sum(measurement.stale for measurement in measurements))
    for _ in range(_ROUNDS):
        around = Predictor(plain.workload, Calibration(belief, plain.speed))
        belief = plain.belief
        for measurement in measurements:
            belief = _updated(belief, around, measurement, doubt if measurement.stale else 0.0)
    return belief


def _updated(belief: Belief, around: Predictor, measurement: Measurement, doubt: float = 0.0) -> Belief:
    """Take one run in.

    Each metric includes the one before, so only its addition is new: allocator, then outside. The expected value of a
    metric under ``belief`` is linearized around ``around``. ``doubt`` is the relative half-width of what the run may
    have measured otherwise than one of today would.
    """
    prediction = around.predict(measurement.plan)
    seen: dict[str, float] = {}
    expected_before, measured_before = 0.0, 0.0
    for metric, measured in measurement.peaks:
        parts = around.sensitivities(measurement.plan, metric)
        expected = getattr(prediction, metric).expected
        added = {name: size - seen.get(name, 0.0) for name, size in parts.items()}
        if not any(added.values()):
            continue  # a virtual GPU has nothing outside its allocator
        predicted = expected - expected_before + belief.moved(added, around.belief)
        # The fill of the last segments is specific to this plan.
        segments = around.unsure_bytes(measurement.plan) if added.get(ALLOCATOR) else 0.0
        noise = math.hypot(_NOISE * sum(added.values()), segments, doubt * sum(added.values()))
        belief = belief.updated(added, measured - measured_before - predicted, noise * noise)
        seen, expected_before, measured_before = parts, expected, measured
    return belief


def _misses(predictor: Predictor, measurements: Sequence[Measurement]) -> list[tuple[float, float, float]]:
    """For each measured peak in bytes: its excess over the expected, the expected, and the doubt from segments."""
    return [
        (measured - expected, expected, 0.0 if metric == "allocated" else predictor.unsure_bytes(measurement.plan))
        for measurement in measurements
        for prediction in (predictor.predict(measurement.plan),)
        for metric, measured in measurement.peaks
        for expected in (getattr(prediction, metric).expected,)
    ]


def _speed(predictor: Predictor, measurements: Sequence[Measurement]) -> SpeedErrors | None:
    if not (timed := [m for m in measurements if m.step_seconds]):
        return None
    return SpeedErrors([Timed(m.plan, predictor.step_parts(m.plan), m.step_seconds, m.stale, m.counted) for m in timed])
