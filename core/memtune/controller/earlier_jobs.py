"""Reuses probes of earlier jobs that had the same question, and stores this job's probes for later ones.

A plan that an earlier job measured is probed once more before it is launched. If that probe ran with another torch or
driver, or measured another peak, the earlier probes are outdated and dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memtune.api.job import Job
from memtune.api.status import RunStatus
from memtune.controller import reasons
from memtune.controller.context import Context
from memtune.controller.formats import sentence
from memtune.controller.job_knowledge import believed
from memtune.controller.plan_choice import ranked, winner
from memtune.controller.read_status import is_plan_of
from memtune.controller.records import TRIED, ended_as, has_ended
from memtune.controller.verdict import Verdict
from memtune.planning.knowledge import PlanKnowledge
from memtune.units import amount, counted
from memtune.wire.names import run_name
from memtune.wire.run import RunKind

MOST_EARLIER = 16
# Two runs of one plan repeat to within about 1% of their peak; a larger difference means different work.
_SAME_PEAK = 0.05
# Fields that only mean something within the job that ran the probe.
_OF_ITS_JOB = {"name", "number", "created", "started_at", "predicted_bytes", "message"}


def with_earlier(context: Context) -> Context:
    """Start with the probes of earlier jobs, if this job has none yet and may launch one of their plans.

    If all of them failed, the job probes for itself whether they still do.
    """
    found = [probe for probe in context.observed.earlier or () if _is_usable(context.job, probe)]
    if context.status.probes or not found:
        return context
    probes = tuple(_taken_over(context.job, number, probe) for number, probe in enumerate(found, 1))
    if not ranked(context.job, believed(context.having(probes=probes)), probes):
        return context
    jobs = ", ".join(dict.fromkeys(probe.measured_by for probe in probes))
    text = (
        f"{counted(len(probes), 'probe')} of earlier jobs ({jobs}) are taken over; only the best plan is probed again"
    )
    return context.having(probes=probes).telling("Normal", reasons.PROBES_KNOWN, text)


def without_outdated(context: Context) -> Context:
    """Drop the probes of earlier jobs that a probe of this job contradicts."""
    earlier = [probe for probe in context.status.probes if probe.measured_by]
    outdated: dict[int, str] = {}
    for own in context.status.own_probes:
        if _has_told(own):
            outdated |= _outdated_by(own, earlier)
    if not outdated:
        return context
    left = tuple(probe for probe in context.status.probes if probe.number not in outdated)
    why = "; ".join(dict.fromkeys(outdated.values()))
    verb = "counts" if len(outdated) == 1 else "count"
    text = f"{counted(len(outdated), 'probe')} of earlier jobs no longer {verb}: {why}"
    return context.having(probes=left).telling("Normal", reasons.PROBES_OUTDATED, text)


def unconfirmed(job: Job, model: PlanKnowledge, probes: Sequence[RunStatus]) -> RunStatus | None:
    """The earlier job's probe whose plan would be launched now, if this job has not probed that plan itself."""
    found = ranked(job, model, probes)
    best = winner(job, model, found) if found else None
    return best if best and best.measured_by and not _is_probed(best.plan, probes) else None


def confirms(plan: str, probes: Sequence[RunStatus]) -> bool:
    """Whether a probe of this plan repeats an earlier job's."""
    return any(probe.measured_by and probe.plan == plan for probe in probes)


def to_keep(context: Context) -> tuple[RunStatus, ...]:
    """The probes to store for later jobs, if the newest is this job's own and not stored yet: the last of each plan."""
    known, own = context.observed.earlier, [probe for probe in context.status.own_probes if _has_told(probe)]
    if known is None or not own or _newest(known) >= _newest(own):
        return ()
    last = {probe.plan: probe for probe in context.status.probes if _has_told(probe)}
    name = context.job.metadata.name
    probes = (probe.model_copy(update={"measured_by": probe.measured_by or name}) for probe in last.values())
    return tuple(sorted(probes, key=lambda probe: probe.ended_at or ""))[-MOST_EARLIER:]


def to_json(probe: RunStatus) -> dict[str, Any]:
    """A probe as plain values, without the fields that only concern its own job."""
    return probe.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_OF_ITS_JOB)


def read_probes(data: Any) -> tuple[RunStatus, ...]:
    """Parse what ``to_json`` wrote; raise ValueError for anything else, since others can write it too."""
    if not isinstance(data, list) or len(data) > MOST_EARLIER or not all(isinstance(each, Mapping) for each in data):
        raise ValueError(f"probes is not a list of at most {MOST_EARLIER} objects")
    return tuple(RunStatus.model_validate({**each, "name": "earlier", "number": 1}) for each in data)


def _taken_over(job: Job, number: int, probe: RunStatus) -> RunStatus:
    name, told = run_name(job.metadata.name, RunKind.PROBE, number), sentence(f"job {probe.measured_by} ran it")
    return probe.model_copy(update={"name": name, "number": number, "created": True, "message": told})


def _is_usable(job: Job, probe: RunStatus) -> bool:
    return bool(probe.measured_by) and has_ended(probe) and _has_told(probe) and is_plan_of(job, probe.plan)


def _has_told(probe: RunStatus) -> bool:
    """Whether a probe says how much memory its plan takes."""
    return ended_as(probe, Verdict.DEVICE_OOM) or (ended_as(probe, Verdict.SUCCEEDED) and probe.peak_bytes is not None)


def _is_probed(plan: str, probes: Iterable[RunStatus]) -> bool:
    return any(
        probe.plan == plan and not probe.measured_by and (not has_ended(probe) or ended_as(probe, *TRIED))
        for probe in probes
    )


def _newest(probes: Iterable[RunStatus]) -> str:
    # RFC 3339 in UTC with whole seconds sorts by time.
    return max((probe.ended_at or "" for probe in probes), default="")


def _outdated_by(own: RunStatus, earlier: Sequence[RunStatus]) -> dict[int, str]:
    """The numbers of the probes that this job's probe contradicts, with the reason."""
    for probe in earlier:
        if probe.plan == own.plan and (why := _other_peak(own, probe)):
            return {each.number: why for each in earlier}
    others = [probe for probe in earlier if _ran_with_other(own, probe)]
    return {
        each.number: f"they ran with {_software(each)}, probe {own.number} with {_software(own)}" for each in others
    }


def _other_peak(own: RunStatus, probe: RunStatus) -> str:
    if ended_as(own, Verdict.DEVICE_OOM) and ended_as(probe, Verdict.SUCCEEDED):
        return f"probe {own.number} ran out of memory on a plan that job {probe.measured_by} measured"
    if own.peak_bytes is None or probe.peak_bytes is None or ended_as(probe, Verdict.DEVICE_OOM):
        return ""
    now, then = own.peak_bytes.device, probe.peak_bytes.device
    if abs(now - then) <= _SAME_PEAK * then:
        return ""
    total = own.peak_bytes.total
    return (
        f"probe {own.number} took {amount(now, total)}, job {probe.measured_by} {amount(then, total)} on the same plan"
    )


def _ran_with_other(own: RunStatus, probe: RunStatus) -> bool:
    """Whether both report a version and the versions differ; a probe that died without a report has none."""
    versions = ((own.torch, probe.torch), (own.driver, probe.driver))
    return any(now and then and now != then for now, then in versions)


def _software(probe: RunStatus) -> str:
    driver = f" and driver {probe.driver}" if probe.driver else ""
    return f"torch {probe.torch or 'unknown'}{driver}"
