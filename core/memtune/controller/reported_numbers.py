"""Turns what a run's pods reported into the numbers of its record. Reports are untrusted, so all is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from memtune.api.status import MAX_NATURAL, MAX_NUMBER, MAX_STEPS, PeakBytes, StepStatus, to_text
from memtune.controller.observation import PodObservation, RunObservation
from memtune.wire.report import Device, Memory, Report

# No request is larger than a few devices; broken communicators report larger ones (nccl#1284).
_LARGEST_REQUEST = 4


def reports_of(pods: Iterable[PodObservation]) -> list[Report]:
    """The reports that exist."""
    return [pod.report for pod in pods if isinstance(pod.report, Report)]


def measured(run: RunObservation) -> dict[str, Any]:
    """Record fields from the reports of a run: the maximum over all ranks."""
    reports = reports_of(run.pods)
    if not reports:
        return {}
    fullest = max(reports, key=lambda report: _device_bytes(report.memory))
    # Times say nothing of a GPU where nothing is computed.
    timed = [report for report in reports if report.device is not Device.EMULATED]
    return {
        "peak_bytes": _peaks(fullest.memory),
        "allocator_retries": max(count(report.memory.alloc_retries) for report in reports),
        "tokens_per_second": int(max((_rate(report.tokens_per_second) for report in timed), default=0)),
        "step_seconds": max((_rate(report.step_seconds) for report in timed), default=0.0),
        "length_covered": _on_all([report.length_covered for report in reports]),
        "pruned": next((report.pruned.value for report in reports if report.pruned), ""),
        "torch": fullest.torch or "",
        "driver": fullest.driver or "",
    }


def counted_seconds(run: RunObservation) -> float:
    """The seconds of an emulated run's step by the operations that it asked of its GPU; 0 if they are not known."""
    return max((_rate(report.step_seconds) for report in reports_of(run.pods)), default=0.0)


def made_up_sizes(run: RunObservation) -> int:
    """How often a tensor of an emulated run got its size from values that no kernel had computed."""
    return max((count(report.memory.made_up_sizes) for report in reports_of(run.pods)), default=0)


def measured_steps(number: int, run: RunObservation) -> tuple[StepStatus, ...]:
    """The reported steps of this probe; all ranks make the same steps."""
    known = next((report.measured_steps for report in reports_of(run.pods) if report.measured_steps), ())
    return tuple(
        StepStatus(
            probe=number,
            step=min(max(each.number, 1), MAX_NUMBER),
            seconds=_rate(each.seconds),
            device_bytes=count(each.device_bytes),
        )
        for each in known
    )


def thinned(steps: Sequence[StepStatus]) -> tuple[StepStatus, ...]:
    """As many steps as the status holds: of the probe with the most, the middle one goes first, of equals the oldest's.

    So every probe keeps some, its last one longest.
    """
    kept = list(steps)
    while len(kept) > MAX_STEPS:
        counts = Counter(step.probe for step in kept)
        most = max(counts, key=lambda probe: (counts[probe], -probe))
        places = [place for place, step in enumerate(kept) if step.probe == most]
        del kept[places[(len(places) - 1) // 2]]
    return tuple(kept)


def _on_all(covered: list[bool | None]) -> bool | None:
    """Whether every rank saw it; None if none reports it."""
    known = [each for each in covered if each is not None]
    return all(known) if known else None


def _peaks(memory: Memory) -> PeakBytes | None:
    if not (memory.peak_reserved_bytes or memory.peak_allocated_bytes):
        return None
    return PeakBytes(
        allocated=count(memory.peak_allocated_bytes),
        active=count(memory.peak_active_bytes),
        reserved=count(memory.peak_reserved_bytes),
        device=_device_bytes(memory),
        total=count(memory.device_total_bytes),
    )


def _device_bytes(memory: Memory) -> int:
    return count(memory.peak_device_bytes)


def demanded_bytes(reports: list[Report]) -> int:
    """The memory that an out-of-memory run had plus what it requested; 0 if no report says."""
    return max((_demand(report.memory) for report in reports), default=0)


def _demand(memory: Memory) -> int:
    had = _device_bytes(memory)
    asked = count(memory.failed_request_bytes)
    return had + (asked if asked <= _LARGEST_REQUEST * max(had, count(memory.device_total_bytes)) else 0)


def checkpointed(reports: list[Report], is_started: bool) -> dict[str, Any]:
    """Record fields about an attempt's progress and its newest complete checkpoint."""
    if not reports:
        return {"trained": is_started, "checkpoint": "unknown" if is_started else "none"}
    found: dict[str, Any] = {"trained": any(report.steps != 0 for report in reports)}
    # Only the run knows this if the checkpoint is of an attempt that could no longer report it.
    if resumed := [report.resumed_samples for report in reports if report.resumed_samples is not None]:
        found["resumed_samples"] = count(max(resumed))
    newest = max(reports, key=lambda report: report.checkpoint_samples or 0)
    if not newest.checkpoint_samples:
        return {**found, "checkpoint": "none"}
    return {
        **found,
        "checkpoint": "saved",
        "checkpoint_samples": count(newest.checkpoint_samples),
        "checkpoint_format": newest.checkpoint_format or "",
    }


def trained(pods: Collection[PodObservation]) -> dict[str, Any]:
    """Status fields for trained samples and their total; needs reports of all pods."""
    reports = reports_of(pods)
    if any(report.device is Device.EMULATED for report in reports):
        return {}  # nothing was trained
    shares = [report.trained_samples for report in reports if report.trained_samples is not None]
    totals = [report.total_samples for report in reports if report.total_samples is not None]
    if not shares or len(shares) < len(pods):
        return {}
    is_known = len(totals) == len(pods)
    return {"trained_samples": count(sum(shares)), "total_samples": count(sum(totals)) if is_known else 0}


def own_batch(pods: Iterable[PodObservation]) -> int | None:
    """The samples per step by the script's own numbers; None if no report has them."""
    found = [count(report.own_batch) for report in reports_of(pods) if report.own_batch]
    return max(found, default=None)


def warnings(pods: Iterable[PodObservation]) -> str:
    """Advice for the script, from the first pod that has any."""
    return next((report.warnings for report in reports_of(pods) if report.warnings), "")


def started_at(run: RunObservation) -> str | None:
    """When the last wrapped container started; None if one has not."""
    starts = [pod.started_at_seconds for pod in run.pods]
    known = [start for start in starts if start is not None]
    return to_text(max(known)) if known and len(known) == len(starts) else None


def count(value: int | None) -> int:
    return min(value or 0, MAX_NATURAL)


def _rate(value: float | None) -> float:
    return min(value or 0.0, 1e15)
