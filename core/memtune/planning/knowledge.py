"""`PlanKnowledge`: what is known of a job's plans, with the predictor recalibrated by each run's lesson."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from memtune.memory.calibration import STALE_ERROR, Measurement, calibrate
from memtune.memory.prediction import Component, Interval, Prediction
from memtune.memory.predictor import Calibration, Predictor
from memtune.memory.speed_errors import STALE_SPEED_ERROR
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
    """The lesson of one run about its plan. ``demanded_bytes`` is 0 unless it ran out of memory.

    One that ``retried`` got its memory only after the allocator had emptied its cache. A ``stale`` one is of other
    versions of torch or the driver: it shifts predictions a little, and neither allows nor forbids a plan. In a
    ``made_up`` one, sizes of tensors came from values that no kernel had computed: it is as uncertain as the formulas.
    The seconds of a ``counted`` one are those of what its step asked of the GPU.
    """

    plan: Plan
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    device_bytes: int = 0
    step_seconds: float = 0.0
    died: bool = False
    demanded_bytes: int = 0
    retried: bool = False
    stale: bool = False
    made_up: bool = False
    counted: bool = False


@dataclass(frozen=True)
class PlanKnowledge:
    """The current knowledge of a workload on its GPU. ``is_gpu_known`` is False if the most common was assumed.

    ``emulations`` are the lessons of emulated runs about torch's allocator and the time of a step. Once a plan ran on a
    GPU, its emulations are ignored.
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
        """The memory that a plan may take: the GPU's, or less if a run died with less."""
        total = self.workload.gpu.usable_bytes
        demands = (lesson.demanded_bytes for lesson in self.current if lesson.died)
        return min([total, *(demand for demand in demands if demand >= _DEMANDED * total)])

    @property
    def _allowed_bytes(self) -> float:
        """The memory that a measured plan may take."""
        return self.usable_bytes * (1 - self.headroom)

    @cached_property
    def current(self) -> tuple[Lesson, ...]:
        """The lessons that are not stale."""
        return tuple(lesson for lesson in self.lessons if not lesson.stale)

    @cached_property
    def predictor(self) -> Predictor:
        """The predictor, corrected by measurements."""
        plain, emulated = Predictor(self.workload), self._emulated

        def measured(lessons: Iterable[Lesson]) -> list[Measurement]:
            return [m for lesson in lessons if not lesson.died and (m := _measurement(lesson, plain))]

        if any(m.step_seconds for m in measured(self.current)):  # a clock measures more than operations
            emulated = tuple(replace(lesson, step_seconds=0.0) for lesson in emulated)
        lessons = (*self.lessons, *emulated)
        measurements = measured(lessons)
        predictor = _calibrated(plain, measurements)
        if not (died := [m for lesson in lessons if lesson.died and (m := self._of_dead(lesson, predictor))]):
            return predictor
        found = calibrate(self.workload, [*measurements, *died])
        # Nothing was measured of a job that only ran out of memory.
        belief = found.belief if measurements else found.belief.with_job_width(plain.belief)
        return Predictor(self.workload, Calibration(belief, found.speed))

    def _of_dead(self, lesson: Lesson, predictor: Predictor) -> Measurement | None:
        """The lower bound from an out-of-memory: the plan needs at least the memory it had plus the memory it
        requested.

        By then the allocator had emptied its cache, so the peak is higher by the bytes that it would have kept.
        """
        demanded, known = self._demanded(lesson), predictor.predict(lesson.plan)
        if not known.needed.expected < demanded < _CREDIBLE * known.device.expected:
            return None
        kept = known.device.expected - known.needed.expected
        return Measurement(lesson.plan, device_bytes=int(demanded + kept), stale=lesson.stale)

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
        """The prediction for the smallest plan that ran out of memory: only plans below may be tried."""
        return self._smallest_of_dead((*self.current, *self._emulated))

    @cached_property
    def measured_bytes(self) -> dict[Plan, int]:
        """The peak of each measured plan that did not run out of memory."""
        died = {lesson.plan for lesson in self.current if lesson.died}
        found = {lesson.plan: lesson.device_bytes for lesson in self.current if lesson.device_bytes}
        return {plan: size for plan, size in found.items() if plan not in died}

    @cached_property
    def _emulated(self) -> tuple[Lesson, ...]:
        measured = {
            lesson.plan for lesson in self.current if lesson.died or lesson.reserved_bytes or lesson.device_bytes
        }
        return tuple(lesson for lesson in self.emulations if lesson.plan not in measured)

    @cached_property
    def emulated_bytes(self) -> dict[Plan, int]:
        """Bytes that torch's allocator reserved under each emulated plan that did not run out of memory."""
        return {lesson.plan: lesson.reserved_bytes for lesson in self._emulated if lesson.reserved_bytes}

    @cached_property
    def _made_up(self) -> frozenset[Plan]:
        """The emulated plans of which sizes of tensors were made up."""
        return frozenset(lesson.plan for lesson in self._emulated if lesson.made_up)

    @cached_property
    def _is_only_emulated(self) -> bool:
        """Whether what is known of peaks comes from emulated GPUs, which are never behind their CPU."""
        measured = (lesson for lesson in self.lessons if not lesson.died)
        return bool(self.emulated_bytes) and not any(
            lesson.reserved_bytes or lesson.device_bytes for lesson in measured
        )

    def expected_bytes(self, plan: Plan) -> float:
        """The memory of a plan: measured, else predicted."""
        return self.measured_bytes.get(plan) or self.predict(plan).device.expected

    def predict(self, plan: Plan) -> Prediction:
        """The memory of a plan as now known; the part outside the allocator is always predicted."""
        prediction = self.predictor.predict(plan)
        if self._before and plan in self._before:
            prediction = self._as_before(prediction, self._before[plan])
        if reserved_bytes := self.emulated_bytes.get(plan):
            widest = prediction.device.upper / prediction.device.expected - 1
            error = widest if plan in self._made_up else _EMULATION_ERROR
            prediction = _as_emulated(prediction, reserved_bytes, error)
        elif not self._is_only_emulated:
            return prediction
        return _maybe_behind(prediction, self.predictor.bytes_behind(plan))

    def may_try(self, plan: Plan) -> bool:
        """Whether a plan is predicted to take less than each that died, or was measured without dying.

        One that was emulated has to fit, and then needs not be smaller than what died on an emulated GPU, unless sizes
        were made up. One of which only a stale lesson says that it died has to leave its headroom at the lower bound.
        """
        if plan in self.measured_bytes:
            return True
        if plan in self._before and self._before[plan].died and self.predict(plan).device.lower > self._allowed_bytes:
            return False
        if plan not in self.emulated_bytes or plan in self._made_up:
            return self.ceiling_bytes == math.inf or self.predict(plan).device.expected < self.ceiling_bytes
        return self.keeps_headroom(plan) and self.predict(plan).device.expected < self._smallest_of_dead(self.current)

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

    def keeps_headroom(self, plan: Plan) -> bool:
        """Whether a plan keeps its headroom: as measured, else the larger of headroom and interval.

        A plan whose allocator had to retry does not, at any peak.
        """
        if any(lesson.retried for lesson in (*self.current, *self._emulated) if lesson.plan == plan):
            return False
        if plan in self.measured_bytes:
            return self.measured_bytes[plan] <= self._allowed_bytes
        return self.predict(plan).fits(self.usable_bytes, self.headroom)

    def _demanded(self, lesson: Lesson) -> int:
        """The bytes that a run had and requested when it ran out of memory."""
        return lesson.demanded_bytes or int(_UNTOLD * self.usable_bytes)

    @cached_property
    def _before(self) -> dict[Plan, Lesson]:
        """The stale lesson of each plan of which nothing newer is known."""
        known = {lesson.plan for lesson in self.current}
        return {
            lesson.plan: lesson
            for lesson in self.lessons
            if lesson.stale and lesson.plan not in known and (lesson.died or lesson.plan in self._of_stale)
        }

    @cached_property
    def _of_stale(self) -> dict[Plan, Measurement]:
        return _measurements((lesson for lesson in self.lessons if lesson.stale), Predictor(self.workload))

    @cached_property
    def _drift(self) -> tuple[float, float]:
        """How much more memory, and how much more time, the plans take now that stale lessons measured, too."""
        now = _measurements(self.current, Predictor(self.workload))
        both = [(now[plan], self._of_stale[plan]) for plan in now if plan in self._of_stale]
        return _ratio(both, lambda found: found.device_bytes), _ratio(both, lambda found: found.step_seconds)

    def _as_before(self, prediction: Prediction, lesson: Lesson) -> Prediction:
        """The prediction of a plan with what it took before in place of what formulas say, and a wide interval."""
        larger, slower = self._drift
        if lesson.died:
            needed, expected = self._demanded(lesson) * larger, prediction.device.expected
            return _with_device(prediction, max(needed if needed < _CREDIBLE * expected else 0, expected), STALE_ERROR)
        before = self._of_stale[lesson.plan]
        if before.device_bytes:
            prediction = _with_device(prediction, before.device_bytes * larger, STALE_ERROR)
        if not before.step_seconds:
            return prediction
        ratio = before.step_seconds * slower / prediction.step_seconds.expected
        speed = prediction.tokens_per_second.expected / ratio
        return replace(
            prediction,
            step_seconds=_around(prediction.step_seconds.expected * ratio, STALE_SPEED_ERROR),
            tokens_per_second=_around(speed, STALE_SPEED_ERROR),
        )

    def _smallest_of_dead(self, lessons: Iterable[Lesson]) -> float:
        died = (self.predict(lesson.plan).device.expected for lesson in lessons if lesson.died)
        return min(died, default=float("inf"))


def _as_emulated(prediction: Prediction, reserved_bytes: int, error: float) -> Prediction:
    """The prediction of a plan with what was emulated in place of what formulas say."""
    overhead_bytes = prediction.device.expected - prediction.reserved.expected
    return _with_device(prediction, reserved_bytes + overhead_bytes, error)


def _maybe_behind(prediction: Prediction, most_bytes: float) -> Prediction:
    """The prediction with a peak that may be higher by so much; what the plan needs may not."""
    device, reserved = (
        each._replace(upper=each.upper + most_bytes) for each in (prediction.device, prediction.reserved)
    )
    return replace(prediction, device=device, reserved=reserved)


def _with_device(prediction: Prediction, device: float, error: float) -> Prediction:
    """The prediction of a plan whose whole memory is known, give or take an error."""
    ratio = device / prediction.device.expected

    def parts() -> tuple[Component, ...]:
        return tuple(
            Component(part.name, Interval(*(bound * ratio for bound in part.bytes))) for part in prediction.components
        )

    known = _around(device, error)
    # The peak of a run was enough for it.
    return replace(prediction, breakdown=parts, device=known, needed=known, job_width_bytes=0.0)


def _around(value: float, error: float) -> Interval:
    return Interval(value * (1 - error), value, value * (1 + error))


def _ratio(both: Sequence[tuple[Measurement, Measurement]], of: Callable[[Measurement], float]) -> float:
    """By which factor newer measurements are larger than older ones of the same plans; 1 if there are none."""
    ratios = [math.log(of(now) / of(before)) for now, before in both if of(now) and of(before)]
    return math.exp(sum(ratios) / len(ratios)) if ratios else 1.0


def _measurements(lessons: Iterable[Lesson], plain: Predictor) -> dict[Plan, Measurement]:
    """The peak of each plan with a run that did not run out of memory."""
    return {lesson.plan: m for lesson in lessons if not lesson.died and (m := _measurement(lesson, plain))}


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
    seconds = lesson.step_seconds if 1e-6 < lesson.step_seconds < 1e6 and not lesson.made_up else 0.0
    if not (allocated or reserved or device):
        return None
    return Measurement(lesson.plan, allocated, reserved, device, seconds, lesson.stale, lesson.counted)
