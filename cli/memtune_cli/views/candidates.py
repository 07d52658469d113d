"""All plans of a job with what is known of each, and the cost of finding the plan with and without MemTune. Pure.

The cost of plans that were not run is unknown: each is charged as much as the job's cheapest probe, and the samples
that a checkpoint saved at the measured speed.
"""

from __future__ import annotations

from typing import NamedTuple

from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.records import RAN, ended_as
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.space import host_refusal
from memtune.plans.plan import Plan
from memtune.words import Word
from memtune_cli.input.job_view import JobView


class Group(Word):
    """What is known about a plan."""

    FITS = "fits"
    MAY_FIT = "may fit"
    CANNOT_FIT = "cannot fit"


class KnownPlan(NamedTuple):
    """One plan of the job."""

    plan: Plan
    device_bytes: float
    tokens_per_second: float
    group: Group


class Reckoned(NamedTuple):
    """An actual or avoided cost, and the rule by which it is calculated."""

    what: str
    runs: int
    gpu_seconds: float
    rule: str


def known_plans(view: JobView) -> list[KnownPlan]:
    """The plans of a job; none if its model cannot be predicted here."""
    if view.job is None:
        return []
    try:
        knowledge = knowledge_of(view.job, view.status, None)
        return [_known_plan(knowledge, plan) for plan in knowledge.plans] if knowledge.is_known else []
    except (ValueError, ArithmeticError):
        return []


def _known_plan(knowledge: PlanKnowledge, plan: Plan) -> KnownPlan:
    prediction = knowledge.predict(plan)
    group = Group.FITS if knowledge.keeps_headroom(plan) else Group.MAY_FIT
    # A plan that ran is known to fit the host's memory.
    is_refused = (
        plan not in knowledge.measured_bytes and host_refusal(knowledge.workload, knowledge.predictor, plan) is not None
    )
    if is_refused or prediction.cannot_fit(knowledge.usable_bytes) or not knowledge.may_try(plan):
        group = Group.CANNOT_FIT
    return KnownPlan(plan, knowledge.expected_bytes(plan), prediction.tokens_per_second.expected, group)


def costs(view: JobView, plans: list[KnownPlan]) -> list[Reckoned]:
    """The costs of finding the plan and of recovery, and those avoided; none if emulated."""
    if view.is_emulated:
        return []
    paid = [probe for probe in view.status.own_probes if probe.gpu_seconds]
    unit = min((probe.gpu_seconds for probe in paid if ended_as(probe, *RAN)), default=0)
    found = []
    if paid:
        spent = view.status.gpu_seconds_spent
        found.append(Reckoned("The probes that were made", len(paid), spent, "measured"))
    if unit and plans:
        tried = {probe.plan for probe in view.status.probes}
        left = [each for each in plans if str(each.plan) not in tried]
        excluded = sum(1 for each in left if each.group is Group.CANNOT_FIT)
        rule = f"each at {unit:,} GPU-seconds, the cheapest probe of this job; they were not run"
        found.append(Reckoned("Plans that the prediction excluded", excluded, excluded * unit, rule))
        others = len(left) - excluded
        found.append(Reckoned("Plans that were not worth a probe", others, others * unit, rule))
    return [*found, *_kept(view)]


def _kept(view: JobView) -> list[Reckoned]:
    """Training that relaunches did not have to repeat."""
    resumed = [attempt for attempt in view.status.attempts if attempt.resumed_samples]
    speeds = [run.tokens_per_second for run in view.runs if run.tokens_per_second]
    if not resumed or not speeds or view.job is None:
        return []
    tokens = sum(attempt.resumed_samples for attempt in resumed) * view.job.spec.training.sequence_length
    speed = speeds[-1]
    rule = f"the samples in the checkpoints that attempts went on from, at the {speed:,} tokens/s measured last"
    return [Reckoned("Training that checkpoints kept", len(resumed), tokens / speed * view.world, rule)]
