"""Reuses probes of earlier jobs that had the same question; `stored_measurements` keeps them.

No plan is launched on an earlier job's word: the job probes it once itself. If that probe measured another peak, the
earlier ones are outdated and dropped; if it ran with another torch or driver, they are stale and count less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memtune.api import reasons
from memtune.api.job import Job
from memtune.api.status import ProbeStatus, sentence
from memtune.controller.context import Context
from memtune.controller.job_knowledge import current_knowledge
from memtune.controller.plan_choice import ranked, winner
from memtune.controller.records import TRIED, ended_as, has_earlier_probes, has_ended, has_measured, is_plan_of
from memtune.controller.stale_probes import software, stale_probes
from memtune.controller.verdict import Verdict
from memtune.memory.calibration import STALE_ERROR
from memtune.planning.knowledge import PlanKnowledge
from memtune.units import amount, counted
from memtune.wire.names import run_name
from memtune.wire.run import RunKind

# Two runs of one plan repeat to within about 1% of their peak; what differs by more did something else.
_SAME_PEAK = STALE_ERROR


def with_earlier(context: Context) -> Context:
    """Start with the probes of earlier jobs, if this job has none yet and may launch one of their plans.

    If all of them failed, the job probes for itself whether they still do.
    """
    found = [probe for probe in context.observed.earlier or () if _is_usable(context.job, probe)]
    if context.status.probes or not found:
        return context
    probes = tuple(_taken_over(context.job, number, probe) for number, probe in enumerate(found, 1))
    if not ranked(context.job, current_knowledge(context.having(probes=probes)), probes):
        return context
    jobs = ", ".join(dict.fromkeys(probe.measured_by for probe in probes))
    verb = "is" if len(probes) == 1 else "are"
    text = (
        f"{counted(len(probes), 'probe')} of earlier jobs ({jobs}) {verb} taken over; "
        "only the best plan is probed again"
    )
    return context.having(probes=probes).telling("Normal", reasons.PROBES_KNOWN, text)


def without_outdated(context: Context) -> Context:
    """Drop the probes of earlier jobs that a probe of this job contradicts."""
    earlier = [probe for probe in context.status.probes if probe.measured_by]
    outdated: dict[int, str] = {}
    for own in context.status.own_probes:
        if has_measured(own):
            outdated |= _outdated_by(own, earlier, stale_probes(context.status.probes))
    if not outdated:
        return context
    left = tuple(probe for probe in context.status.probes if probe.number not in outdated)
    why = "; ".join(dict.fromkeys(outdated.values()))
    verb = "counts" if len(outdated) == 1 else "count"
    text = f"{counted(len(outdated), 'probe')} of earlier jobs no longer {verb}: {why}"
    return context.having(probes=left).telling("Normal", reasons.PROBES_OUTDATED, text)


def with_stale_marked(context: Context) -> Context:
    """Say in their records which probes of earlier jobs are stale, and once in an event."""
    if not has_earlier_probes(context.status):
        return context
    gone = stale_probes(context.status.probes)
    messages = {probe.number: _origin(probe, probe in gone) for probe in context.status.probes if probe.measured_by}
    new = [probe for probe in gone if probe.message != messages[probe.number]]
    probes = (
        probe.model_copy(update={"message": messages.get(probe.number, probe.message)})
        for probe in context.status.probes
    )
    context = context.having(probes=tuple(probes))
    if not new:
        return context
    versions = ", ".join(dict.fromkeys(software(probe) for probe in new))
    is_one = len(new) == 1
    text = (
        f"{counted(len(new), 'probe')} of earlier jobs {'is' if is_one else 'are'} stale and "
        f"{'counts' if is_one else 'count'} less: {'it' if is_one else 'they'} ran with {versions}, not with what this "
        "job runs with"
    )
    return context.telling("Normal", reasons.PROBES_STALE, text)


def _origin(probe: ProbeStatus, is_stale: bool) -> str:
    """Where the record of an earlier job's probe comes from."""
    return sentence(f"job {probe.measured_by} ran it" + (f" with {software(probe)}: stale" if is_stale else ""))


def unconfirmed(job: Job, knowledge: PlanKnowledge, probes: Sequence[ProbeStatus]) -> ProbeStatus | None:
    """The earlier job's probe whose plan would be launched now, if this job has not probed that plan itself."""
    found = ranked(job, knowledge, probes)
    best = winner(job, knowledge, found) if found else None
    return best if best and best.measured_by and not _is_probed(best.plan, probes) else None


def _taken_over(job: Job, number: int, probe: ProbeStatus) -> ProbeStatus:
    name = run_name(job.metadata.name, RunKind.PROBE, number)
    return probe.model_copy(update={"name": name, "number": number, "created": True, "message": _origin(probe, False)})


def _is_usable(job: Job, probe: ProbeStatus) -> bool:
    return bool(probe.measured_by) and has_ended(probe) and has_measured(probe) and is_plan_of(job, probe.plan)


def _is_probed(plan: str, probes: Iterable[ProbeStatus]) -> bool:
    return any(
        probe.plan == plan and not probe.measured_by and (not has_ended(probe) or ended_as(probe, *TRIED))
        for probe in probes
    )


def _outdated_by(own: ProbeStatus, earlier: Sequence[ProbeStatus], gone: Sequence[ProbeStatus]) -> dict[int, str]:
    """The numbers of the probes that one of this job contradicts, and how. If a stale one is, the others still hold."""
    for probe in earlier:
        if probe.plan == own.plan and (why := _other_peak(own, probe)):
            return {each.number: why for each in (gone if probe in gone else earlier)}
    return {}


def _other_peak(own: ProbeStatus, probe: ProbeStatus) -> str:
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
