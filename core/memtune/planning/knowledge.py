"""`PlanKnowledge`: what is known of a job's plans, with the predictor recalibrated by each run's lesson."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from memtune.memory.calibration import Measurement, calibrate
from memtune.memory.prediction import Component, Interval, Prediction
from memtune.memory.predictor import Predictor
from memtune.memory.uncertainty import Calibration
from memtune.memory.workload import Workload
from memtune.planning.space import Candidate, Ranking, Space, enumerate_plans, rank
from memtune.plans.plan import Plan

# A number this many times off the prediction is no measurement of the plan: reports are untrusted.
_CREDIBLE = 20.0
# A run that ran out of memory used at least this fraction of it; a lower report is not credible.
_DEMANDED = 0.3
# An out-of-memory without a report demanded more than there is, by an unknown amount: this factor is assumed.
_UNTOLD = 1.02
# How far an emulated peak may be from a GPU's: bench/results/emulated.md, with the publication's settings.
_EMULATION_ERROR = 0.02


@dataclass(frozen=True)
class Lesson:
    """What one run taught about its plan. ``demanded_bytes`` is 0 unless it ran out of memory.

    A run that ``retried`` got its memory only after the allocator had emptied its cache.
    """

    plan: Plan
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    device_bytes: int = 0
    step_seconds: float = 0.0
    died: bool = False
    demanded_bytes: int = 0
    retried: bool = False


@dataclass(frozen=True)
class PlanKnowledge:
    """The current knowledge of a workload on its GPU. ``is_gpu_known`` is False if the most common was assumed.

    ``emulations`` are the lessons of emulated runs about torch's allocator. Once a plan ran on a GPU, its emulations
    are ignored.
    """

    workload: Workload
    space: Space
    lessons: tuple[Lesson, ...]
    headroom: float
    objective: str
    is_gpu_known: bool = True
    emulations: tuple[Lesson, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether predictions rest on more than assumptions."""
        has_measured = any(not lesson.died for lesson in (*self.lessons, *self.emulations))
        return self.is_gpu_known and (has_measured or not self.workload.assumed)

    @property
    def is_gpu_named(self) -> bool:
        """Whether the GPU's product is known, not only its memory, so that it can be emulated."""
        return self.is_gpu_known and not self.workload.gpu.guessed

    @cached_property
    def usable_bytes(self) -> int:
        """What a plan may take: the GPU's memory, or less if a run died with less."""
        total = self.workload.gpu.usable_bytes
        demands = (lesson.demanded_bytes for lesson in self.lessons if lesson.died)
        return min([total, *(demand for demand in demands if demand >= _DEMANDED * total)])

    @cached_property
    def predictor(self) -> Predictor:
        """The predictor, corrected by measurements."""
        plain, lessons = Predictor(self.workload), (*self.lessons, *self._emulated)
        measurements = [m for lesson in lessons if not lesson.died and (m := _measurement(lesson, plain))]
        predictor = _calibrated(plain, measurements)
        # An out-of-memory only says that the plan takes at least what it had plus what it requested.
        died = [
            Measurement(lesson.plan, device_bytes=demanded)
            for lesson in lessons
            if lesson.died
            for demanded in (lesson.demanded_bytes or int(_UNTOLD * self.usable_bytes),)
            if demanded > (expected := predictor.predict(lesson.plan).device.expected)
            and demanded < _CREDIBLE * expected
        ]
        return _calibrated(plain, [*measurements, *died]) if died else predictor

    def predictor_for(self, workload: Workload) -> Predictor:
        """The predictor for the workload with other sequences or GPUs, corrected by this one's measurements."""
        found = self.predictor
        is_corrected = self.lessons or self._emulated
        return Predictor(workload, Calibration(found.belief, found.speed) if is_corrected else None)

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan that the job allows."""
        return tuple(enumerate_plans(self.workload, self.space))

    @cached_property
    def ceiling_bytes(self) -> float:
        """The predicted memory of the smallest plan that ran out of memory: only smaller plans may be tried."""
        return self._smallest_of_dead((*self.lessons, *self._emulated))

    @cached_property
    def measured_bytes(self) -> dict[Plan, int]:
        """Measured memory of each plan that did not run out of it."""
        died = {lesson.plan for lesson in self.lessons if lesson.died}
        found = {lesson.plan: lesson.device_bytes for lesson in self.lessons if lesson.device_bytes}
        return {plan: size for plan, size in found.items() if plan not in died}

    @cached_property
    def _emulated(self) -> tuple[Lesson, ...]:
        told = {lesson.plan for lesson in self.lessons if lesson.died or lesson.reserved_bytes or lesson.device_bytes}
        return tuple(lesson for lesson in self.emulations if lesson.plan not in told)

    @cached_property
    def emulated_bytes(self) -> dict[Plan, int]:
        """What torch's allocator reserved under each emulated plan that did not run out of memory."""
        return {lesson.plan: lesson.reserved_bytes for lesson in self._emulated if lesson.reserved_bytes}

    def expected_bytes(self, plan: Plan) -> float:
        """The memory of a plan: measured, else predicted."""
        return self.measured_bytes.get(plan) or self.predict(plan).device.expected

    def predict(self, plan: Plan) -> Prediction:
        """The memory of a plan as now known; the part outside the allocator is always predicted."""
        prediction = self.predictor.predict(plan)
        reserved_bytes = self.emulated_bytes.get(plan)
        return _as_emulated(prediction, reserved_bytes) if reserved_bytes else prediction

    def may_try(self, plan: Plan) -> bool:
        """Whether a plan is predicted to take less than each that died, or was measured without dying.

        An emulated plan has to fit, and may then be larger than one that died on an emulated GPU.
        """
        if plan in self.measured_bytes:
            return True
        if plan not in self.emulated_bytes:
            return self.predict(plan).device.expected < self.ceiling_bytes
        return self.fits(plan) and self.predict(plan).device.expected < self._smallest_of_dead(self.lessons)

    @cached_property
    def ranking(self) -> Ranking:
        """Rank the plans that may be tried: what fits, may fit and cannot fit, the best first."""
        gpu = replace(self.workload, gpu=self.workload.gpu.with_memory(self.usable_bytes))
        allowed = (plan for plan in self.plans if self.may_try(plan))
        return rank(gpu, self, allowed, self.headroom, self.objective)

    def candidates(self, tried: Iterable[Plan]) -> tuple[Candidate, ...]:
        """The plans worth a probe, those that surely fit first."""
        gone, found = set(tried), self.ranking
        possible = [*found.fitting, *(Candidate(each.plan, each.prediction) for each in found.uncertain)]
        return tuple(candidate for candidate in possible if candidate.plan not in gone)

    def smallest(self) -> Plan | None:
        """The plan with the least predicted memory."""
        return min(self.plans, key=lambda plan: (self.predict(plan).device.expected, plan), default=None)

    def fits(self, plan: Plan) -> bool:
        """Whether a plan keeps its headroom: as measured, else the larger of headroom and interval.

        A plan whose allocator had to retry does not, whatever its peak.
        """
        if any(lesson.retried for lesson in (*self.lessons, *self._emulated) if lesson.plan == plan):
            return False
        if plan in self.measured_bytes:
            return self.measured_bytes[plan] <= self.usable_bytes * (1 - self.headroom)
        return self.predict(plan).fits(self.usable_bytes, self.headroom)

    def _smallest_of_dead(self, lessons: Iterable[Lesson]) -> float:
        died = (self.predict(lesson.plan).device.expected for lesson in lessons if lesson.died)
        return min(died, default=float("inf"))


def _as_emulated(prediction: Prediction, reserved_bytes: int) -> Prediction:
    """The prediction of a plan with the emulated reserved bytes in place of the formulas'."""
    device = reserved_bytes + prediction.device.expected - prediction.reserved.expected
    ratio = device / prediction.device.expected

    def parts() -> tuple[Component, ...]:
        return tuple(
            Component(part.name, Interval(*(bound * ratio for bound in part.bytes))) for part in prediction.components
        )

    around = Interval(device * (1 - _EMULATION_ERROR), device, device * (1 + _EMULATION_ERROR))
    return replace(prediction, breakdown=parts, device=around)


def _calibrated(plain: Predictor, measurements: Sequence[Measurement]) -> Predictor:
    return Predictor(plain.workload, calibrate(plain.workload, measurements)) if measurements else plain


def _measurement(lesson: Lesson, plain: Predictor) -> Measurement | None:
    """A run's measurement, without the numbers that cannot be true."""
    prediction = plain.predict(lesson.plan)

    def credible(measured: float, expected: float) -> bool:
        return expected / _CREDIBLE < measured < expected * _CREDIBLE

    allocated = lesson.allocated_bytes if credible(lesson.allocated_bytes, prediction.allocated.expected) else 0
    reserved = lesson.reserved_bytes if credible(lesson.reserved_bytes, prediction.reserved.expected) else 0
    device = lesson.device_bytes if credible(lesson.device_bytes, prediction.device.expected) else 0
    seconds = lesson.step_seconds if 1e-6 < lesson.step_seconds < 1e6 else 0.0
    if not (allocated or reserved or device):
        return None
    return Measurement(lesson.plan, allocated, reserved, device, seconds)
