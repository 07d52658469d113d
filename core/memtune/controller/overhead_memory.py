"""Driver overhead measured by earlier jobs (memory outside the allocator), which later jobs start with."""

from __future__ import annotations

from memtune.api.job import Job
from memtune.api.status import Status, to_seconds
from memtune.controller.context import Context
from memtune.controller.records import ended_as
from memtune.controller.verdict import Verdict
from memtune.gpus.driver_overhead import is_credible
from memtune.memory.measured_overhead import JobOutside
from memtune.wire.names import short_hash

_NAME_CHARACTERS = 12


def of_earlier_jobs(context: Context) -> tuple[int, ...]:
    """What other jobs measured outside the allocator, if plausible; a GPU that is not real has none."""
    found = context.observed.remembered
    if found is None or context.job.spec.resources.device != "cuda":
        return ()
    return tuple(size for size in found.of_others(_name(context.job)) if is_credible(size, context.world))


def to_remember(context: Context) -> JobOutside | None:
    """The job's own measurement, if it is not stored yet and a store exists."""
    known, own = context.observed.remembered, _measured(context.job, context.status)
    return own if known is not None and own is not None and known.having(own) != known else None


def _measured(job: Job, status: Status) -> JobOutside | None:
    """The maximum over the runs: kernels are loaded on demand and stay."""
    if job.spec.resources.device != "cuda":
        return None  # memory outside an emulated GPU's allocator is the estimate that predictions use
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
