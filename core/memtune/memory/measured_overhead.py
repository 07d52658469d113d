"""Driver overhead that jobs measured outside the allocator, for later jobs of the same image, GPU and GPU count.

The CUDA context and NCCL's buffers belong to no model, and no formula gives them. Each job counts once, and only the
newest are kept, so that none counts indefinitely. Merging is commutative and idempotent: operators that write at the
same time reach the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from memtune.gpus.driver_overhead import expected_overhead
from memtune.wire.report_checks import count, shown, word

VERSION = 1
MOST_JOBS = 16

# How much jobs of one image, GPU and world differ even if their measurements agree: other models load other kernels,
# other plans make other communicators. Chosen, not fitted: no published run has this number.
_BETWEEN_JOBS = 0.2
# A value this many times off the constants is another process's memory, or no measurement.
_CREDIBLE = 4.0


class JobOverhead(NamedTuple):
    """One job's measurement and its time in seconds; of two of one job the newer one counts."""

    at: int
    job: str
    overhead_bytes: int


@dataclass(frozen=True)
class MeasuredOverhead:
    """The newest measurements, each of another job."""

    jobs: tuple[JobOverhead, ...] = ()

    def having(self, new: JobOverhead) -> MeasuredOverhead:
        """Add a job's measurement, or replace its older one."""
        return newest_of((*self.jobs, new))

    def of_others(self, job: str) -> tuple[int, ...]:
        """Measurements of all jobs but this one, whose own runs correct its predictions anyway."""
        return tuple(each.overhead_bytes for each in self.jobs if each.job != job)

    @property
    def newest_at(self) -> int:
        """The time of the newest measurement."""
        return max((each.at for each in self.jobs), default=0)

    def to_json(self) -> dict[str, Any]:
        """As plain values, the version first."""
        jobs = [{"job": job, "outsideBytes": overhead_bytes, "at": at} for at, job, overhead_bytes in self.jobs]
        return {"version": VERSION, "jobs": jobs}


def newest_of(jobs: Iterable[JobOverhead]) -> MeasuredOverhead:
    """Keep the newest of the measurements."""
    newest = {each.job: each for each in sorted(jobs)}
    return MeasuredOverhead(tuple(sorted(newest.values())[-MOST_JOBS:]))


def is_credible(overhead_bytes: int, world: int) -> bool:
    """Whether a context and its communicators may take this much."""
    expected = sum(expected_overhead(world).values())
    return expected / _CREDIBLE <= overhead_bytes <= expected * _CREDIBLE


def overhead_after(sizes: Sequence[int], world: int) -> tuple[float, float]:
    """The expected bytes outside the allocator of the next job, and their half-width.

    The half-width always covers each job's measurement and, while there are few jobs, the constants.
    """
    middle = median(sizes)
    spread = max(abs(size - middle) for size in sizes)
    doubt = abs(middle - sum(expected_overhead(world).values())) / len(sizes)
    return middle, max(_BETWEEN_JOBS * middle, spread, doubt)


def read_measured_overhead(data: Any) -> MeasuredOverhead:
    """Parse what ``to_json`` wrote; raise ValueError for anything else, since others can write it too."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise ValueError(f"{shown(data)} is no measurements of version {VERSION}")
    jobs = data.get("jobs")
    if not isinstance(jobs, list) or len(jobs) > MOST_JOBS:
        raise ValueError(f"jobs: {shown(jobs)} is not a list of at most {MOST_JOBS} measurements")
    return newest_of(_read_job(each) for each in jobs)


def _read_job(data: Any) -> JobOverhead:
    if not isinstance(data, dict):
        raise ValueError(f"jobs: {shown(data)} is not an object")
    return JobOverhead(count(data.get("at")), word(16)(data.get("job")), count(data.get("outsideBytes")))
