"""The target of a probe: what its plan has to beat, so that the runner ends a probe that cannot win."""

from __future__ import annotations

from collections.abc import Sequence

from memtune.api.job import Job
from memtune.api.status import ProbeStatus, RunStatus
from memtune.controller.context import Context
from memtune.controller.job_knowledge import current_knowledge
from memtune.controller.plan_choice import winner
from memtune.controller.trials import may_be_launched
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.next_probe import target_of
from memtune.wire.probe_pruning import NOTHING, Target


def target_of_run(context: Context, record: RunStatus) -> Target:
    """The target of a run's pods; none for an attempt, or on an emulated GPU, which takes no GPU-seconds.

    Pods of one run that are created at different times may get different targets: only the first rank's counts, and it
    ends no probe that includes a rank without a target.
    """
    probes = context.status.probes
    if record not in probes or record.emulated:
        return NOTHING
    return next_target(context.job, current_knowledge(context), probes)


def next_target(job: Job, knowledge: PlanKnowledge, probes: Sequence[ProbeStatus]) -> Target:
    """The target of the next probe: the best plan that this job has measured itself; before that, only the headroom.

    Without a known GPU, the headroom is unknown.
    """
    good = [probe for probe in probes if not probe.measured_by and may_be_launched(job, knowledge, probe)]
    if not good:
        return target_of(knowledge) if knowledge.is_gpu_known else NOTHING
    best = winner(job, knowledge, good)
    return target_of(knowledge, best.tokens_per_second, best.peak_bytes.device if best.peak_bytes else 0)
