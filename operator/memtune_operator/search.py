"""The search as an Optuna study, made anew from what the status records of each probe.

The study knows one parameter, the plan; its choices are the plans that can fit. Which to probe next is the business of
`memtune.acquisition`; Optuna keeps the trials, the infeasible ones as such, so that any of its samplers could answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from memtune.acquisition import Question, Trial, expected_improvement
from memtune.plan import Plan

PLAN = "plan"
FITS = "fits"  # a constraint: at most 0 where the plan fits

optuna.logging.set_verbosity(optuna.logging.WARNING)


def propose(question: Question) -> Plan | None:
    """The plan to probe next, None if none is worth it."""
    plan = expected_improvement(question)
    if plan is None:
        return None
    names = choices(question)
    study = study_of(question, PlanSampler(plan), names)
    return Plan.parse(study.ask({PLAN: CategoricalDistribution(names)}).params[PLAN])


def choices(question: Question) -> list[str]:
    """All plans of the study, those that were tried and those that may be, in an order that does not tell which."""
    plans = {candidate.plan for candidate in question.candidates} | {trial.plan for trial in question.trials}
    return sorted(str(plan) for plan in plans)


def study_of(question: Question, sampler: BaseSampler, names: Sequence[str]) -> Study:
    """The study as it stands after the probes that were recorded."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials([_frozen(trial, CategoricalDistribution(names)) for trial in question.trials])
    return study


def _frozen(trial: Trial, distribution: CategoricalDistribution) -> FrozenTrial:
    # A plan that does not fit is a completed trial with the worst score: a failed one would teach a sampler nothing.
    return optuna.create_trial(
        state=TrialState.RUNNING if trial.fits is None else TrialState.COMPLETE,
        value=None if trial.fits is None else trial.score * trial.fits,
        params={PLAN: str(trial.plan)},
        distributions={PLAN: distribution},
        constraints=None if trial.fits is None else {FITS: -1.0 if trial.fits else 1.0},
    )


class PlanSampler(BaseSampler):
    """Answers with the one plan that the acquisition chose."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Nothing is sampled together."""
        return {}

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Nothing is sampled together."""
        return {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> str:
        """The plan in its short form."""
        return str(self._plan)
