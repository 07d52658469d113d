"""What is known of a job's plans: the predictor, recalibrated by every run that taught something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from memtune.calibrate import Calibration, Measurement, calibrate
from memtune.plan import Plan
from memtune.predict.predictor import Predictor
from memtune.prediction import Prediction
from memtune.space import Candidate, Ranking, Space, enumerate_plans, rank
from memtune.workload import Workload

# Numbers so far from the prediction are no measurement of the plan; a report may say anything.
_CREDIBLE = 20.0
# A run that died for want of memory had at least this share of it; less is no report of a device.
_DEMANDED = 0.3
# An out-of-memory without a report demanded more than there is; nobody knows how much.
_UNTOLD = 1.02


@dataclass(frozen=True)
class Lesson:
    """What one run told of its plan. ``demanded_bytes`` is of one that ran out of memory, 0 for one that did not.

    One that ``retried`` got its memory only after the allocator had emptied its cache.
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
class Model:
    """A workload on its GPU as it is known now. ``is_gpu_known`` is False where the table's commonest was assumed."""

    workload: Workload
    space: Space
    lessons: tuple[Lesson, ...]
    headroom: float
    objective: str
    is_gpu_known: bool = True

    @property
    def is_known(self) -> bool:
        """Whether anything but an assumption stands behind the predictions."""
        has_measured = any(not lesson.died for lesson in self.lessons)
        return self.is_gpu_known and (has_measured or not self.workload.assumed)

    @cached_property
    def usable_bytes(self) -> int:
        """What a plan may take: the GPU's memory, or less if a run died of less."""
        total = self.workload.gpu.usable_bytes
        demands = (lesson.demanded_bytes for lesson in self.lessons if lesson.died)
        return min([total, *(demand for demand in demands if demand >= _DEMANDED * total)])

    @cached_property
    def predictor(self) -> Predictor:
        """The predictor, corrected by what was measured."""
        plain = Predictor(self.workload)
        measurements = [m for lesson in self.lessons if not lesson.died and (m := _measurement(lesson, plain))]
        predictor = _calibrated(plain, measurements)
        # An out-of-memory says that the plan takes at least what it had and asked for, and nothing more.
        died = [
            Measurement(lesson.plan, device_bytes=demanded)
            for lesson in self.lessons
            if lesson.died
            for demanded in (lesson.demanded_bytes or int(_UNTOLD * self.usable_bytes),)
            if demanded > (expected := predictor.predict(lesson.plan).device.expected)
            and demanded < _CREDIBLE * expected
        ]
        return _calibrated(plain, [*measurements, *died]) if died else predictor

    def predictor_for(self, workload: Workload) -> Predictor:
        """The predictor of the workload with other sequences or GPUs, of which measurements of this one tell too."""
        found = self.predictor
        return Predictor(workload, Calibration(found.belief, found.speed) if self.lessons else None)

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan that the job allows."""
        return tuple(enumerate_plans(self.workload, self.space))

    @cached_property
    def ceiling_bytes(self) -> float:
        """What the smallest plan that ran out of memory is predicted to take: only plans below may be tried."""
        died = (self.predict(lesson.plan).device.expected for lesson in self.lessons if lesson.died)
        return min(died, default=float("inf"))

    @cached_property
    def measured_bytes(self) -> dict[Plan, int]:
        """What each plan that was measured took, and did not die of."""
        died = {lesson.plan for lesson in self.lessons if lesson.died}
        found = {lesson.plan: lesson.device_bytes for lesson in self.lessons if lesson.device_bytes}
        return {plan: size for plan, size in found.items() if plan not in died}

    def expected_bytes(self, plan: Plan) -> float:
        """What a plan takes: as measured, else as predicted."""
        return self.measured_bytes.get(plan) or self.predict(plan).device.expected

    def predict(self, plan: Plan) -> Prediction:
        """What a plan takes, as far as is known now."""
        return self.predictor.predict(plan)

    def may_try(self, plan: Plan) -> bool:
        """Whether a plan is predicted to take less than each that died, or was measured and did not die."""
        return plan in self.measured_bytes or self.predict(plan).device.expected < self.ceiling_bytes

    @cached_property
    def ranking(self) -> Ranking:
        """The plans that may be tried, the best first among those that fit, may fit and cannot fit."""
        gpu = replace(self.workload, gpu=self.workload.gpu.with_memory(self.usable_bytes))
        allowed = (plan for plan in self.plans if self.may_try(plan))
        return rank(gpu, self.predictor, allowed, self.headroom, self.objective)

    def candidates(self, tried: Iterable[Plan]) -> tuple[Candidate, ...]:
        """The plans that are worth a probe, those that fit for sure first."""
        gone, found = set(tried), self.ranking
        possible = [*found.fitting, *(Candidate(each.plan, each.prediction) for each in found.uncertain)]
        return tuple(candidate for candidate in possible if candidate.plan not in gone)

    def smallest(self) -> Plan | None:
        """The plan that is predicted to take least."""
        return min(self.plans, key=lambda plan: (self.predict(plan).device.expected, plan), default=None)

    def fits(self, plan: Plan) -> bool:
        """Whether a plan leaves what it must: its headroom as measured, else the larger of headroom and interval.

        One whose allocator had to retry leaves too little, whatever its peak says.
        """
        if any(lesson.retried for lesson in self.lessons if lesson.plan == plan):
            return False
        if plan in self.measured_bytes:
            return self.measured_bytes[plan] <= self.usable_bytes * (1 - self.headroom)
        return self.predict(plan).fits(self.usable_bytes, self.headroom)


def _calibrated(plain: Predictor, measurements: Sequence[Measurement]) -> Predictor:
    return Predictor(plain.workload, calibrate(plain.workload, measurements)) if measurements else plain


def _measurement(lesson: Lesson, plain: Predictor) -> Measurement | None:
    """What a run measured, without the numbers that cannot be true."""
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
