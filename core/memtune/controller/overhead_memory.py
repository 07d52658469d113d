"""What outlives a job: its runs measured what lies outside of the allocator, and later jobs begin with that."""

from __future__ import annotations

from memtune.api.job import Job
from memtune.api.status import Status
from memtune.controller.context import Context
from memtune.controller.records import ended_as
from memtune.controller.times import to_seconds
from memtune.controller.verdict import Verdict
from memtune.memory.driver_overhead import is_credible
from memtune.memory.measured_overhead import JobOutside
from memtune.wire.names import short_hash

_NAME_CHARACTERS = 12


def of_earlier_jobs(context: Context) -> tuple[int, ...]:
    """What other jobs measured outside of the allocator, as far as it can be true; a GPU that is not real has none."""
    found = context.observed.remembered
    if found is None or context.job.spec.resources.device != "cuda":
        return ()
    return tuple(size for size in found.of_others(_name(context.job)) if is_credible(size, context.world))


def to_remember(context: Context) -> JobOutside | None:
    """What the job's own runs measured, if that is not remembered yet and anybody keeps it."""
    known, own = context.observed.remembered, _measured(context.job, context.status)
    return own if known is not None and own is not None and known.having(own) != known else None


def _measured(job: Job, status: Status) -> JobOutside | None:
    """The most that one of the runs had: kernels are loaded as they are needed, and stay."""
    if job.spec.resources.device != "cuda":
        return None  # what is outside of an emulated GPU's allocator is the estimate that predictions use
    found = [
        (int(to_seconds(record.ended_at) or 0), peaks.device - peaks.reserved)
        for record in (*status.probes, *status.attempts)
        if (peaks := record.peak_bytes) and peaks.reserved and ended_as(record, Verdict.SUCCEEDED)
    ]
    credible = [(at, size) for at, size in found if is_credible(size, job.spec.resources.world)]
    if not credible:
        return None
    return JobOutside(max(at for at, _ in credible), _name(job), max(size for _, size in credible))


def _name(job: Job) -> str:
    return short_hash(job.metadata.uid, _NAME_CHARACTERS)
