"""Every plan that a job allows, as it is believed of them by now, and what it would have cost to try them. Pure.

Nobody knows what plans that were not run would have taken: each is charged at the cheapest probe of the same job, and
the samples that a checkpoint kept at the speed that was measured.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from memtune.controller.job_knowledge import model_of
from memtune.controller.records import RAN, ended_as
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.space import host_refusal
from memtune.plans.plan import Plan
from memtune_cli.input.job_view import JobView


class Group(str, Enum):
    """What is believed of a plan."""

    FITS = "fits"
    MAY_FIT = "may fit"
    CANNOT_FIT = "cannot fit"

    def __str__(self) -> str:
        return str(self.value)


class Believed(NamedTuple):
    """One plan that the job allows."""

    plan: Plan
    device_bytes: float
    tokens_per_second: float
    group: Group


class Reckoned(NamedTuple):
    """What something took, or would have taken, and the rule by which that is reckoned."""

    what: str
    runs: int
    gpu_seconds: float
    rule: str


def believed(story: JobView) -> list[Believed]:
    """The plans of a job; none if it describes no model that can be predicted here."""
    if story.job is None:
        return []
    try:
        model = model_of(story.job, story.status, None)
        return [_believed(model, plan) for plan in model.plans] if model.is_known else []
    except (ValueError, ArithmeticError):
        return []


def _believed(model: PlanKnowledge, plan: Plan) -> Believed:
    prediction = model.predict(plan)
    group = Group.FITS if model.fits(plan) else Group.MAY_FIT
    # Of a plan that ran, the host has held what it offloads.
    is_refused = plan not in model.measured_bytes and host_refusal(model.workload, model.predictor, plan) is not None
    if is_refused or prediction.cannot_fit(model.usable_bytes) or not model.may_try(plan):
        group = Group.CANNOT_FIT
    return Believed(plan, model.expected_bytes(plan), prediction.tokens_per_second.expected, group)


def costs(story: JobView, plans: list[Believed]) -> list[Reckoned]:
    """What finding the plan and keeping it alive took, and what it would have taken without; nothing if emulated."""
    if story.is_emulated:
        return []
    paid = [probe for probe in story.status.own_probes if probe.gpu_seconds]
    unit = min((probe.gpu_seconds for probe in paid if ended_as(probe, *RAN)), default=0)
    found = []
    if paid:
        spent = story.status.gpu_seconds_spent
        found.append(Reckoned("The probes that were made", len(paid), spent, "measured"))
    if unit and plans:
        tried = {probe.plan for probe in story.status.probes}
        left = [each for each in plans if str(each.plan) not in tried]
        excluded = sum(1 for each in left if each.group is Group.CANNOT_FIT)
        rule = f"each at {unit:,} GPU-seconds, the cheapest probe of this job; nobody ran them"
        found.append(Reckoned("Plans that the prediction excluded", excluded, excluded * unit, rule))
        others = len(left) - excluded
        found.append(Reckoned("Plans that were not worth a probe", others, others * unit, rule))
    return [*found, *_kept(story)]


def _kept(story: JobView) -> list[Reckoned]:
    """Training that relaunches did not have to do again."""
    resumed = [attempt for attempt in story.status.attempts if attempt.resumed_samples]
    speeds = [run.tokens_per_second for run in story.runs if run.tokens_per_second]
    if not resumed or not speeds or story.job is None:
        return []
    tokens = sum(attempt.resumed_samples for attempt in resumed) * story.job.spec.training.sequence_length
    speed = speeds[-1]
    rule = f"the samples in the checkpoints that attempts went on from, at the {speed:,} tokens/s measured last"
    return [Reckoned("Training that checkpoints kept", len(resumed), tokens / speed * story.world, rule)]
