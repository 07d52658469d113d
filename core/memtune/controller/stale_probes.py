"""Probes of earlier jobs that ran with other software than this job, and count less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memtune.api.status import RunStatus
from memtune.controller.records import has_measured


def stale(probes: Sequence[RunStatus]) -> tuple[RunStatus, ...]:
    """The probes of earlier jobs that ran with another torch or driver than all that this job has made.

    Before it has made any, the newest probe of an earlier job says what it will run with. No record is marked as stale:
    it follows from the versions, so neither a restart nor an edited status can lose it.
    """
    earlier = [probe for probe in probes if probe.measured_by]
    versions = _with_versions(probe for probe in probes if not probe.measured_by and has_measured(probe))
    newest = sorted(_with_versions(earlier), key=lambda probe: probe.ended_at or "")[-1:]
    now = versions or newest
    return tuple(probe for probe in earlier if now and all(_differ(probe, each) for each in now))


def current(probes: Sequence[RunStatus]) -> tuple[RunStatus, ...]:
    """All probes but the stale ones."""
    gone = {probe.number for probe in stale(probes)}
    return tuple(probe for probe in probes if probe.number not in gone)


def software(probe: RunStatus) -> str:
    """What a probe ran with, in words."""
    driver = f" and driver {probe.driver}" if probe.driver else ""
    return f"torch {probe.torch or 'unknown'}{driver}"


def _with_versions(probes: Iterable[RunStatus]) -> list[RunStatus]:
    return [probe for probe in probes if probe.torch or probe.driver]


def _differ(one: RunStatus, other: RunStatus) -> bool:
    """Whether both tell a version, and not the same: one that died without a report tells none."""
    versions = ((one.torch, other.torch), (one.driver, other.driver))
    return any(a and b and a != b for a, b in versions)
