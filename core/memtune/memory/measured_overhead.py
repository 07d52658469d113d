"""Driver overhead that jobs measured outside the allocator, for later jobs of the same image, GPU and GPU count.

The CUDA context and NCCL's buffers belong to no model, and no formula gives them. Each job counts once, and only the
newest are kept, so that none counts indefinitely. Merging is commutative and idempotent: operators that write at the
same time reach the same result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from memtune.wire.report_checks import count, shown, word

VERSION = 1
MOST_JOBS = 16


class JobOutside(NamedTuple):
    """One job's measurement and its time in seconds; of two of one job the newer one counts."""

    at: int
    job: str
    outside_bytes: int


@dataclass(frozen=True)
class Remembered:
    """The newest measurements, each of another job."""

    jobs: tuple[JobOutside, ...] = ()

    def having(self, new: JobOutside) -> Remembered:
        """Add a job's measurement, or replace its older one."""
        return remembered((*self.jobs, new))

    def of_others(self, job: str) -> tuple[int, ...]:
        """Measurements of all jobs but this one, whose own runs correct its predictions anyway."""
        return tuple(each.outside_bytes for each in self.jobs if each.job != job)

    @property
    def newest_at(self) -> int:
        """The time of the newest measurement."""
        return max((each.at for each in self.jobs), default=0)

    def to_json(self) -> dict[str, Any]:
        """As plain values, the version first."""
        jobs = [{"job": job, "outsideBytes": outside_bytes, "at": at} for at, job, outside_bytes in self.jobs]
        return {"version": VERSION, "jobs": jobs}


def remembered(jobs: Iterable[JobOutside]) -> Remembered:
    """Keep the newest of the measurements."""
    newest = {each.job: each for each in sorted(jobs)}
    return Remembered(tuple(sorted(newest.values())[-MOST_JOBS:]))


def read_remembered(data: Any) -> Remembered:
    """Parse what ``to_json`` wrote; raise ValueError for anything else, since others can write it too."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise ValueError(f"{shown(data)} is no measurements of version {VERSION}")
    jobs = data.get("jobs")
    if not isinstance(jobs, list) or len(jobs) > MOST_JOBS:
        raise ValueError(f"jobs: {shown(jobs)} is not a list of at most {MOST_JOBS} measurements")
    return remembered(_read_job(each) for each in jobs)


def _read_job(data: Any) -> JobOutside:
    if not isinstance(data, dict):
        raise ValueError(f"jobs: {shown(data)} is not an object")
    return JobOutside(count(data.get("at")), word(16)(data.get("job")), count(data.get("outsideBytes")))
