"""Chooses the measured plan to launch, and the Pareto front with two objectives."""

from __future__ import annotations

from collections.abc import Sequence

from memtune.api.fields import to_ratio
from memtune.api.job import Job
from memtune.api.status import MAX_FRONT, ProbeStatus
from memtune.controller.records import TRIED, ended_as
from memtune.controller.stale_probes import current_probes
from memtune.controller.trials import may_be_launched, score, trial_of
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.pareto import Point, front
from memtune.planning.space import BOTH
from memtune.wire.probe_pruning import Pruned


def ranked(job: Job, knowledge: PlanKnowledge, probes: Sequence[ProbeStatus]) -> list[ProbeStatus]:
    """The probes to choose from, one for each plan that may be launched. Stale ones are not among them.

    For a plan that an earlier job also probed, this job's probe decides whether it may be launched; its rank comes from
    the earlier job's measurements, so that noise alone does not change the best plan.
    """
    probes = current_probes(probes)
    good = [probe for probe in probes if may_be_launched(job, knowledge, probe)]
    own = {probe.plan for probe in good if not probe.measured_by}
    tried = {probe.plan for probe in probes if not probe.measured_by and ended_as(probe, *TRIED)}
    earlier = [probe for probe in good if probe.measured_by and (probe.plan in own or probe.plan not in tried)]
    repeated = {probe.plan for probe in earlier}
    return [*earlier, *(probe for probe in good if not probe.measured_by and probe.plan not in repeated)]


def winner(job: Job, knowledge: PlanKnowledge, good: Sequence[ProbeStatus]) -> ProbeStatus:
    """The probe with the best objective; with two objectives, the smallest that is fast enough.

    A probe that ended early was too slow: it wins only if those that beat it may no longer be launched.
    """
    good = [probe for probe in good if probe.pruned != Pruned.SPEED.value] or good
    best = max(
        good, key=lambda probe: (score(job, knowledge, probe), _point(job, knowledge, probe).free, -probe.number)
    )
    if not job.spec.tuning.slack:
        return best
    least = (1 - to_ratio(job.spec.tuning.slack)) * score(job, knowledge, best)
    fast = [probe for probe in good if score(job, knowledge, probe) >= least]
    return max(
        fast, key=lambda probe: (_point(job, knowledge, probe).free, score(job, knowledge, probe), -probe.number)
    )


def front_of(job: Job, knowledge: PlanKnowledge, good: Sequence[ProbeStatus]) -> tuple[int, ...]:
    """The Pareto front of probes, the fastest first; empty with one objective."""
    if job.spec.tuning.objective != BOTH:
        return ()
    by_point: dict[Point, int] = {}
    for probe in good:
        by_point.setdefault(_point(job, knowledge, probe), probe.number)
    return _spread([by_point[point] for point in reversed(front(list(by_point)))], winner(job, knowledge, good).number)


def _point(job: Job, knowledge: PlanKnowledge, probe: ProbeStatus) -> Point:
    return trial_of(job, knowledge, probe).point


def _spread(numbers: list[int], launched: int) -> tuple[int, ...]:
    """As many as the status holds, including both ends and the launched one."""
    if len(numbers) <= MAX_FRONT:
        return tuple(numbers)
    step = (len(numbers) - 1) / (MAX_FRONT - 1)
    shown, own = [round(number * step) for number in range(MAX_FRONT)], numbers.index(launched)
    if own not in shown:
        shown[min(range(1, MAX_FRONT - 1), key=lambda place: abs(shown[place] - own))] = own
    return tuple(numbers[place] for place in shown)
