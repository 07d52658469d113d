"""Builds the `PlanKnowledge` of a job from its object, its status and its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from memtune.api.job import Job
from memtune.api.status import AttemptStatus, EmulationStatus, PeakBytes, ProbeStatus, RunStatus, Status
from memtune.api.workload import gpu_of, own_part, to_space, to_workload
from memtune.controller.context import Context
from memtune.controller.observation import Node
from memtune.controller.records import ended_as, plan_of
from memtune.controller.stale_probes import stale_probes
from memtune.controller.stored_measurements import overhead_of_earlier_jobs
from memtune.controller.tracing import is_given_up, traced_model
from memtune.controller.verdict import Verdict
from memtune.gpus.driver_overhead import expected_overhead
from memtune.gpus.gpu import GPUS, Gpu, nearest, of_product
from memtune.memory.traced_model import TracedModel
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture
from memtune.model.plain import assumed_architecture
from memtune.planning.knowledge import Lesson, PlanKnowledge
from memtune.planning.space import Space
from memtune.units import MIB

# The label gives the product's nominal memory; a process gets up to a tenth less.
_SOLD_OVER_USABLE = 1.1
# More than readings differ by, and less than any other process takes, which has a context.
_ROUNDING_BYTES = 64 * MIB


def current_knowledge(context: Context) -> PlanKnowledge:
    """The knowledge about the job under decision."""
    observed = context.observed
    return knowledge_of(context.job, context.status, observed.nodes, context.trace, overhead_of_earlier_jobs(context))


def knowledge_of(
    job: Job,
    status: Status,
    nodes: Sequence[Node] | None,
    trace: str = "",
    overhead_bytes: tuple[int, ...] = (),
    *,
    is_traced_elsewhere: bool = False,
) -> PlanKnowledge:
    """The current knowledge; raises ValueError (or its subclass SpecError) if the job describes no workload.

    ``trace`` is the trace of the job's factory, if any; ``overhead_bytes`` what earlier jobs had outside the allocator.
    If a trace exists but is not at hand, the plans are known and their memory is assumed.
    """
    gpu, known = _gpu(job, status, nodes)
    tuning = job.spec.tuning
    model: Architecture | TracedModel | None = traced_model(trace)
    is_untraced = is_given_up(job, status) or (is_traced_elsewhere and job.spec.model.factory is not None)
    if is_assumed := model is None and is_untraced:
        model = assumed_architecture(gpu.usable_bytes, job.spec.resources.world)
    workload = replace(to_workload(job, gpu, model), assumed=is_assumed, overhead_bytes=overhead_bytes)
    lessons = (*_of_probes(status.probes), *_lessons(status.attempts))
    emulations = _of_emulations(status.emulations, job.spec.resources.world)
    return _cached(workload, to_space(job), lessons, tuning.headroom_ratio, tuning.objective, known, emulations)


def _of_probes(probes: Sequence[ProbeStatus]) -> tuple[Lesson, ...]:
    gone = stale_probes(probes)
    return tuple(replace(lesson, stale=probe in gone) for probe in probes if (lesson := lesson_of(probe)))


def _of_emulations(records: Sequence[RunStatus], world: int) -> tuple[Lesson, ...]:
    """The lessons of emulated probes.

    Memory outside the allocator of an emulated GPU is an estimate and teaches nothing, unless there is more: other
    processes of the script took it.
    """
    most = sum(expected_overhead(world).values()) + _ROUNDING_BYTES
    return tuple(
        lesson if lesson.device_bytes > lesson.reserved_bytes + most else replace(lesson, device_bytes=0)
        for lesson in _lessons(records)
    )


def _lessons(records: Sequence[RunStatus]) -> tuple[Lesson, ...]:
    return tuple(lesson for record in records if (lesson := lesson_of(record)))


@lru_cache(maxsize=64)
def _cached(
    workload: Workload,
    space: Space,
    lessons: tuple[Lesson, ...],
    headroom: float,
    objective: str,
    known: bool,
    emulations: tuple[Lesson, ...],
) -> PlanKnowledge:
    """Cache by value, so that equal knowledge is computed once across decisions."""
    return PlanKnowledge(workload, space, lessons, headroom, objective, known, emulations)


def _gpu(job: Job, status: Status, nodes: Sequence[Node] | None) -> tuple[Gpu, bool]:
    """The GPU, by a run's report, else the object, else the labels of its nodes; and whether any of these names it."""
    # A job stays on the product that it has chosen or met, though its nodes have others.
    met = status.gpu_product
    labelled = _labelled([node for node in nodes or () if not met or node.gpu_product in ("", met)])
    named = gpu_of(job) or (labelled and own_part(job, labelled))
    measured = [
        record.peak_bytes.total
        for record in (*status.probes, *status.attempts)
        if record.peak_bytes and record.peak_bytes.total and record.ended_at
    ]
    if measured:
        return (named or nearest(measured[-1])).with_memory(measured[-1]), True
    # Not known yet: the smallest plan is probed first, and its report says.
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


def _has_lesson(record: RunStatus) -> bool:
    """Whether a run says something about the memory of its plan."""
    if ended_as(record, Verdict.SUCCEEDED):
        return record.peak_bytes is not None
    return ended_as(record, Verdict.DEVICE_OOM)


def lesson_of(record: RunStatus) -> Lesson | None:
    """The lesson of a run about the memory of its plan; None if it has none."""
    if not _has_lesson(record):
        return None
    plan = plan_of(record)
    if ended_as(record, Verdict.DEVICE_OOM):
        # An attempt shrinks its evaluation or save instead of the plan; a probe has nothing else to shrink.
        spares_plan = isinstance(record, AttemptStatus) and record.out_of_memory in ("evaluation", "saving")
        return Lesson(plan, died=not spares_plan, demanded_bytes=record.demanded_bytes)
    if record.length_covered is False:
        return Lesson(plan)  # shorter sequences teach nothing about the longest
    peaks = record.peak_bytes or PeakBytes(allocated=0, active=0, reserved=0, device=0, total=0)
    has_retried = record.allocator_retries > 0
    return Lesson(
        plan,
        peaks.allocated,
        peaks.reserved,
        peaks.device,
        record.step_seconds,
        retried=has_retried,
        made_up=isinstance(record, EmulationStatus) and record.made_up_sizes > 0,
        counted=isinstance(record, EmulationStatus),
    )
