"""What is believed of a job's plans: the predictor, recalibrated by every run that told something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from memtune.calibrate import Calibration, Measurement, calibrate
from memtune.decide.context import Context
from memtune.decide.observed import Node
from memtune.decide.records import ended_as, plan_of
from memtune.decide.remembering import of_earlier_jobs
from memtune.decide.tracing import is_given_up, traced_model
from memtune.gpu import GPUS, Gpu
from memtune.gpu_products import nearest, of_product
from memtune.model.architecture import Architecture
from memtune.model.assumed import assumed_architecture
from memtune.plan import Plan
from memtune.predict.predictor import Predictor
from memtune.prediction import Prediction
from memtune.replay.traced import TracedModel
from memtune.space import Candidate, Ranking, Space, enumerate_plans, rank
from memtune.spec.gpu import gpu_of, own_part
from memtune.spec.job import Job
from memtune.spec.space import to_space
from memtune.spec.status import AttemptStatus, PeakBytes, RunStatus, Status
from memtune.spec.workload import to_workload
from memtune.verdict import Verdict
from memtune.workload import Workload

# Numbers so far from the prediction are no measurement of the plan; a report may say anything.
_CREDIBLE = 20.0
# A run that died for want of memory had at least this share of it; less is no report of a device.
_DEMANDED = 0.3
# An out-of-memory without a report demanded more than there is; nobody knows how much.
_UNTOLD = 1.02
# A label gives the memory of the product, a process gets up to a tenth less.
_SOLD_OVER_USABLE = 1.1


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


def believed(context: Context) -> Model:
    """What is believed of a job that is being decided on."""
    observed = context.observed
    return model_of(context.job, context.status, observed.nodes, context.trace, of_earlier_jobs(context))


def model_of(
    job: Job, status: Status, nodes: Sequence[Node] | None, trace: str = "", outside_bytes: tuple[int, ...] = ()
) -> Model:
    """What is believed now; raises ValueError (or SpecError, which is one) where the job describes no workload.

    ``trace`` is that of the job's factory, if it has one; ``outside_bytes`` what earlier jobs had beside the allocator.
    """
    gpu, known = _gpu(job, status, nodes)
    tuning = job.spec.tuning
    model: Architecture | TracedModel | None = traced_model(trace)
    if is_assumed := model is None and is_given_up(job, status):
        model = assumed_architecture(gpu.usable_bytes, job.spec.resources.world)
    workload = replace(to_workload(job, gpu, model), assumed=is_assumed, outside_bytes=outside_bytes)
    lessons = tuple(_lesson(record) for record in (*status.probes, *status.attempts) if _told(record))
    return _cached(workload, to_space(job), lessons, tuning.headroom_ratio, tuning.objective, known)


@lru_cache(maxsize=64)
def _cached(
    workload: Workload, space: Space, lessons: tuple[Lesson, ...], headroom: float, objective: str, known: bool
) -> Model:
    """Equal knowledge is one model, so that what it has computed is not computed again at the next decision."""
    return Model(workload, space, lessons, headroom, objective, known)


def _gpu(job: Job, status: Status, nodes: Sequence[Node] | None) -> tuple[Gpu, bool]:
    """The GPU: what a run measured, else the object, else the labels of its nodes; and whether any of them told."""
    labelled = _labelled(nodes)
    named = gpu_of(job) or (labelled and own_part(job, labelled))
    measured = [
        record.peak_bytes.total
        for record in (*status.probes, *status.attempts)
        if record.peak_bytes and record.peak_bytes.total and record.ended_at
    ]
    if measured:
        return (named or nearest(measured[-1])).with_memory(measured[-1]), True
    # Nobody knows yet: the smallest plan is probed first, and its report tells.
    return (named, True) if named else (GPUS["a100-80gb"], False)


def _labelled(nodes: Sequence[Node] | None) -> Gpu | None:
    for node in nodes or ():
        known = of_product(node.gpu_product) if node.gpu_product else None
        memory = node.gpu_memory_bytes
        if known and (not memory or known.usable_bytes <= memory <= known.usable_bytes * _SOLD_OVER_USABLE):
            return known
        if memory:
            return (known or nearest(memory)).with_memory(memory)
    return None


def _told(record: RunStatus) -> bool:
    """Whether a run says something about the memory of its plan."""
    if ended_as(record, Verdict.SUCCEEDED):
        return record.peak_bytes is not None
    return ended_as(record, Verdict.DEVICE_OOM)


def _lesson(record: RunStatus) -> Lesson:
    plan = plan_of(record)
    if ended_as(record, Verdict.DEVICE_OOM):
        # A train run gives way elsewhere when its evaluation or its save dies; a probe has nothing else to give.
        spares_plan = isinstance(record, AttemptStatus) and record.out_of_memory in ("evaluation", "saving")
        return Lesson(plan, died=not spares_plan, demanded_bytes=record.demanded_bytes)
    if record.length_covered is False:
        return Lesson(plan)  # what shorter sequences take teaches nothing about the longest
    peaks = record.peak_bytes or PeakBytes(allocated=0, active=0, reserved=0, device=0, total=0)
    has_retried = record.allocator_retries > 0
    return Lesson(plan, peaks.allocated, peaks.reserved, peaks.device, record.step_seconds, retried=has_retried)
