"""The Optuna study of a job: each trial is a probe, each knob that the job leaves open is a parameter.

Measurements are user attributes of the trials, so the study alone has all that a sampler needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from memtune.planning.knowledge import Lesson, PlanKnowledge
from memtune.planning.next_probe import SearchState, Trial
from memtune.planning.parameters import Choose, StudyParameters
from memtune.planning.space import BOTH
from memtune.plans.plan import Plan
from memtune_operator.search.study_processes import is_gone

FITS = "fits"  # the constraint: at most 0 where the plan fits
DIED = "died"  # a trial that has this attribute taught something of the memory
RETRY = "retry"  # the attribute of a failed trial whose plan may be tried again
FAILED = "failed"  # that of a failed trial whose plan is given up
STALE = "stale"  # that of a trial that ran with another torch or driver, and counts less
PLAN = "plan"  # that of a trial's plan, in its short form
WORKER = "memtune:worker"  # the system attribute that names the process of a trial
CHOSEN = "memtune:chosen"  # that of the parameters that the sampler chose, before the trial itself has them
_MEASURED = tuple(field.name for field in fields(Lesson) if field.name not in ("plan", STALE))
# The least excess of a plan that does not fit, as a share of the GPU.
_LEAST_OVER = 1e-3


def distributions_of(parameters: StudyParameters) -> dict[str, BaseDistribution]:
    """The parameters as Optuna distributions."""
    return {name: CategoricalDistribution(choices) for name, choices in parameters.choices.items()}


def all_parameters(state: SearchState) -> StudyParameters:
    """The parameters of a job's study: of the plans that it allows now and of those already probed."""
    return StudyParameters(tuple(dict.fromkeys([*state.knowledge.plans, *(trial.plan for trial in state.trials)])))


def suggesting(trial: optuna.Trial) -> Choose:
    """A chooser that asks the study's sampler."""
    return lambda name, choices: trial.suggest_categorical(name, choices)


def frozen(
    knowledge: PlanKnowledge, parameters: StudyParameters, trial: Trial, attributes: Mapping[str, Any] | None = None
) -> FrozenTrial:
    """Convert a probe to an Optuna trial. A probe without a result becomes a failed trial, which samplers ignore."""
    known = distributions_of(parameters)
    chosen = parameters.values_of(trial.plan)
    return optuna.create_trial(
        state=_state(knowledge, trial),
        # A plan that does not fit is a complete trial with the worst score, since samplers ignore failed trials.
        values=None if trial.fits is None else values_of(knowledge, trial),
        params=chosen,
        distributions={name: known[name] for name in chosen},
        user_attrs={**(attributes or {}), **_measured(trial)},
        constraints=None if trial.fits is None else {FITS: violation(knowledge, trial)},
        # With two objectives Optuna has neither intermediate values nor pruned trials.
        intermediate_values=None if knowledge.objective == BOTH else dict(trial.steps),
    )


def to_trial(knowledge: PlanKnowledge, parameters: StudyParameters, trial: FrozenTrial) -> Trial | None:
    """Convert an Optuna trial back; None if its parameters are no plan of the study."""
    plan = _plan_of(parameters, trial)
    if plan is None:
        return None
    lesson = _lesson(plan, trial)
    # A trial that was pruned before it measured anything has no result.
    has_told = trial.state is TrialState.COMPLETE or (trial.state is TrialState.PRUNED and lesson is not None)
    values = trial.values if has_told else None
    has_died = lesson is not None and lesson.died
    is_stale = STALE in trial.user_attrs
    return Trial(
        number=trial.number + 1,
        plan=plan,
        fits=None if values is None else _trial_fits(knowledge, lesson, trial),
        died=has_died,
        score=values[0] if values else 0.0,
        lesson=lesson,
        is_running=trial.state in (TrialState.RUNNING, TrialState.WAITING) and not is_lost(trial),
        tried=not is_stale and (has_died or not (is_lost(trial) or RETRY in trial.user_attrs)),
        free_bytes=values[-1] if values and knowledge.objective == BOTH else 0.0,
        pruned=trial.state is TrialState.PRUNED,
        steps=tuple(sorted(trial.intermediate_values.items())),
        stale=is_stale,
        closed=not knowledge.space.allows(plan),
    )


def _plan_of(parameters: StudyParameters, trial: FrozenTrial) -> Plan | None:
    """The plan of a trial. The parameters tell it too, but for knobs that had one choice, of another space."""
    named = named_plan(trial)
    return named or parameters.plan_of({**trial.system_attrs.get(CHOSEN, {}), **trial.params})


def named_plan(trial: FrozenTrial) -> Plan | None:
    """The plan that a trial names; None if it names none."""
    try:
        return Plan.parse(trial.user_attrs[PLAN])
    except (KeyError, TypeError, ValueError):
        return None


def is_lost(trial: FrozenTrial) -> bool:
    """Whether a trial ended without a result: it failed, or its process is gone."""
    if trial.state is TrialState.FAIL:
        return not {FAILED, RETRY} & trial.user_attrs.keys()
    return trial.state is TrialState.RUNNING and is_gone(trial.system_attrs.get(WORKER, ""))


def directions_of(knowledge: PlanKnowledge) -> list[StudyDirection]:
    """All objectives are maximised."""
    return [StudyDirection.MAXIMIZE] * (2 if knowledge.objective == BOTH else 1)


def values_of(knowledge: PlanKnowledge, trial: Trial) -> list[float]:
    """The objective values of a plan; the worst of each if it does not fit."""
    values = [trial.score, trial.free_bytes] if knowledge.objective == BOTH else [trial.score]
    return [value if trial.fits else 0.0 for value in values]


def violation(knowledge: PlanKnowledge, trial: Trial) -> float:
    """The share of the GPU by which a plan exceeds its limit; at most 0 if it fits."""
    lesson = trial.lesson
    taken = max(lesson.device_bytes, lesson.demanded_bytes) if lesson else 0
    over = taken / knowledge.usable_bytes - (1 - knowledge.headroom)
    return min(over, 0.0) if trial.fits else max(over, _LEAST_OVER)


def _trial_fits(knowledge: PlanKnowledge, lesson: Lesson | None, trial: FrozenTrial) -> bool:
    """Whether a trial fits: by MemTune's constraint if recorded, else by its measurement. Other constraints do not
    count."""
    if trial.constraints and FITS in trial.constraints:
        return trial.constraints[FITS] <= 0
    return lesson is None or (
        not lesson.died and lesson.device_bytes <= knowledge.usable_bytes * (1 - knowledge.headroom)
    )


def _state(knowledge: PlanKnowledge, trial: Trial) -> TrialState:
    if trial.fits is not None:
        return TrialState.PRUNED if trial.pruned and knowledge.objective != BOTH else TrialState.COMPLETE
    return TrialState.RUNNING if trial.is_running else TrialState.FAIL


def _measured(trial: Trial) -> dict[str, Any]:
    found: dict[str, Any] = {PLAN: str(trial.plan)}
    if trial.stale:
        found[STALE] = True
    elif not trial.tried:
        found[RETRY] = True
    elif trial.fits is None and not trial.is_running:
        found[FAILED] = True
    if trial.lesson:
        found |= {name: value for name, value in asdict(trial.lesson).items() if name in _MEASURED}
    return found


def _lesson(plan: Plan, trial: FrozenTrial) -> Lesson | None:
    """The measurement of a complete trial: a running or interrupted one may not have reached its peak."""
    attributes = trial.user_attrs
    is_whole = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    if DIED not in attributes or not (is_whole or attributes[DIED]):
        return None
    measured = {name: attributes[name] for name in _MEASURED if name in attributes}
    return Lesson(plan, **measured, stale=STALE in attributes)
