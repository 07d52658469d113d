"""Measurements that a namespace stores for later jobs: driver overhead (memory outside the allocator), and probes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memtune.api.job import Job
from memtune.api.status import ProbeStatus, to_seconds
from memtune.controller.context import Context
from memtune.controller.records import ended_as, has_measured
from memtune.controller.verdict import Verdict
from memtune.memory.measured_overhead import JobOverhead, is_credible
from memtune.wire.names import short_hash

_NAME_CHARACTERS = 12


def overhead_of_earlier_jobs(context: Context) -> tuple[int, ...]:
    """Other jobs' measurements outside the allocator, if plausible; none for a GPU that is not real."""
    found = context.observed.measured_overhead
    if found is None or context.job.spec.resources.device != "cuda":
        return ()
    return tuple(size for size in found.of_others(_name(context.job)) if is_credible(size, context.world))


def overhead_to_store(context: Context) -> JobOverhead | None:
    """The job's own measurement, if a run made it after the stored one and a store exists.

    The maximum over the runs: kernels are loaded on demand and stay.
    """
    known, status, name = context.observed.measured_overhead, context.status, _name(context.job)
    if known is None or context.job.spec.resources.device != "cuda":
        return None  # memory outside an emulated GPU's allocator is the estimate that predictions use
    stored_at = max((each.at for each in known.jobs if each.job == name), default=-1)
    found = [
        (int(to_seconds(record.ended_at) or 0), peaks.device - peaks.reserved)
        for record in (*status.probes, *status.attempts)
        if (peaks := record.peak_bytes) and peaks.reserved and ended_as(record, Verdict.SUCCEEDED)
    ]
    if all(at <= stored_at for at, _ in found):
        return None
    credible = [(at, size) for at, size in found if is_credible(size, context.world)]
    if not credible:
        return None
    own = JobOverhead(max(at for at, _ in credible), name, max(size for _, size in credible))
    return own if known.having(own) != known else None


def _name(job: Job) -> str:
    return short_hash(job.metadata.uid, _NAME_CHARACTERS)


MOST_EARLIER = 16

# Facts about the run within its own job, meaningless to another one.
_OF_ITS_JOB = {"name", "number", "created", "started_at", "predicted_bytes", "message"}


def probes_to_store(context: Context) -> tuple[ProbeStatus, ...]:
    """The probes that later jobs may begin with: the last one of each plan, with the job that ran it. Only if the
    newest is this job's own and not stored yet.
    """
    known, own = context.observed.earlier, [probe for probe in context.status.own_probes if has_measured(probe)]
    if known is None or not own or _newest(known) >= _newest(own):
        return ()
    last = {probe.plan: probe for probe in context.status.probes if has_measured(probe)}
    name = context.job.metadata.name
    probes = (probe.model_copy(update={"measured_by": probe.measured_by or name}) for probe in last.values())
    return tuple(sorted(probes, key=lambda probe: probe.ended_at or ""))[-MOST_EARLIER:]


def to_json(probe: ProbeStatus) -> dict[str, Any]:
    """A probe as plain values, without the fields that only concern its own job."""
    return probe.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_OF_ITS_JOB)


def read_probes(data: Any) -> tuple[ProbeStatus, ...]:
    """Parse what ``to_json`` wrote; raise ValueError for anything else, since others can write it too."""
    if not isinstance(data, list) or len(data) > MOST_EARLIER or not all(isinstance(each, Mapping) for each in data):
        raise ValueError(f"probes is not a list of at most {MOST_EARLIER} objects")
    return tuple(ProbeStatus.model_validate({**each, "name": "earlier", "number": 1}) for each in data)


def _newest(probes: Iterable[ProbeStatus]) -> str:
    # RFC 3339 in UTC with whole seconds sorts by time.
    return max((probe.ended_at or "" for probe in probes), default="")
