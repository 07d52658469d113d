"""Stale probes: those of earlier jobs that ran with another torch or NVIDIA driver, and count less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memtune.api.status import ProbeStatus
from memtune.controller.records import has_measured


def stale_probes(probes: Sequence[ProbeStatus]) -> tuple[ProbeStatus, ...]:
    """The probes of earlier jobs that ran with another torch or driver than all that this job has made.

    Before it has made any, the newest probe of an earlier job says what it will run with. No record is marked as stale:
    it follows from the versions, so neither a restart nor an edited status can lose it.
    """
    earlier = [probe for probe in probes if probe.measured_by]
    versions = _with_versions(probe for probe in probes if not probe.measured_by and has_measured(probe))
    newest = sorted(_with_versions(earlier), key=lambda probe: probe.ended_at or "")[-1:]
    now = versions or newest
    return tuple(probe for probe in earlier if now and all(_differ(probe, each) for each in now))


def current_probes(probes: Sequence[ProbeStatus]) -> tuple[ProbeStatus, ...]:
    """All probes but the stale ones."""
    gone = {probe.number for probe in stale_probes(probes)}
    return tuple(probe for probe in probes if probe.number not in gone)


def software(probe: ProbeStatus) -> str:
    """The versions that a probe ran with, as text."""
    driver = f" and driver {probe.driver}" if probe.driver else ""
    return f"torch {probe.torch or 'unknown'}{driver}"


def _with_versions(probes: Iterable[ProbeStatus]) -> list[ProbeStatus]:
    return [probe for probe in probes if probe.torch or probe.driver]


def _differ(one: ProbeStatus, other: ProbeStatus) -> bool:
    """Whether both report a version and the versions differ; a run that died without a report has none."""
    versions = ((one.torch, other.torch), (one.driver, other.driver))
    return any(a and b and a != b for a, b in versions)
