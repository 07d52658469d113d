"""What jobs measured outside of the allocator: the next job of the same image, GPU and number of GPUs begins with it.

The CUDA context and NCCL's buffers belong to no model, and no formula gives them. Each job counts once, and only the
newest are kept, so that none weighs for ever. The order in which measurements come together does not matter, nor does
it that one comes twice: operators that write at the same time end with the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from memtune.wire.report_checks import count, shown, word

VERSION = 1
MOST_JOBS = 16


class JobOutside(NamedTuple):
    """What one job measured, and in which second; of two of one job the newer one holds."""

    at: int
    job: str
    outside_bytes: int


@dataclass(frozen=True)
class Remembered:
    """The newest measurements, each of another job."""

    jobs: tuple[JobOutside, ...] = ()

    def having(self, new: JobOutside) -> Remembered:
        """With what one more job measured, or with what it has measured since."""
        return remembered((*self.jobs, new))

    def of_others(self, job: str) -> tuple[int, ...]:
        """What all jobs but this one measured; its own runs correct its predictions anyway."""
        return tuple(each.outside_bytes for each in self.jobs if each.job != job)

    @property
    def newest_at(self) -> int:
        """When the newest measurement was made."""
        return max((each.at for each in self.jobs), default=0)

    def to_json(self) -> dict[str, Any]:
        """As plain values, the version first."""
        jobs = [{"job": job, "outsideBytes": outside_bytes, "at": at} for at, job, outside_bytes in self.jobs]
        return {"version": VERSION, "jobs": jobs}


def remembered(jobs: Iterable[JobOutside]) -> Remembered:
    """What is kept of so many measurements."""
    newest = {each.job: each for each in sorted(jobs)}
    return Remembered(tuple(sorted(newest.values())[-MOST_JOBS:]))


def read_remembered(data: Any) -> Remembered:
    """What ``to_json`` wrote; raise ValueError if anybody else did, who may have written anything."""
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
