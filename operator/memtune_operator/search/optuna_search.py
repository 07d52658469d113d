"""Chooses the next plan to probe with an Optuna study, rebuilt each time from the probes in the status."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace

import optuna
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from memtune.planning.knowledge import Lesson
from memtune.planning.next_probe import MEMTUNE, SearchState, Trial, most_promising
from memtune.planning.parameters import StudyParameters
from memtune.plans.plan import Plan
from memtune_operator.search.optuna_sampler import MemTuneSampler, NothingFitsError
from memtune_operator.search.study import FITS, all_parameters, directions_of, frozen, suggesting, values_of, violation

# The number of probes that the prediction chooses before an Optuna sampler takes over.
PRIOR_PROBES = 3
# How many tried or impossible plans the sampler may propose for each probe.
_MOST_ASKS = 32

# Optuna logs each study and trial; events and the status report them already.
optuna.logging.set_verbosity(optuna.logging.WARNING)


def propose(state: SearchState) -> Plan | None:
    """The plan to probe next, or None if no probe is worthwhile."""
    possible = {candidate.plan for candidate in state.choice.candidates}
    if not possible:
        return None
    if state.sampler != MEMTUNE:
        # Optuna's samplers would be drawn to the values of plans that may not be launched.
        state = replace(state, trials=tuple(trial for trial in state.trials if not trial.closed))
    parameters = all_parameters(state)
    study = optuna.create_study(directions=directions_of(state.knowledge), sampler=_sampler(state, parameters))
    study.add_trials([frozen(state.knowledge, parameters, trial) for trial in state.trials])
    if (first := _of_prior(state)) is not None:
        study.enqueue_trial(parameters.values_of(first))
    for _ in range(1 if state.sampler == MEMTUNE else _MOST_ASKS):
        trial = study.ask()
        try:
            plan = parameters.plan(suggesting(trial))
        except (NothingFitsError, optuna.TrialPruned):
            return None
        if plan in possible:
            return plan
        _tell(study, trial, state, plan)
    return None if state.sampler == MEMTUNE else most_promising(state)


def _of_prior(state: SearchState) -> Plan | None:
    """The first plan for a sampler without predictions."""
    is_early = sum(trial.tried and not trial.closed for trial in state.trials) < PRIOR_PROBES
    return most_promising(state) if is_early and state.sampler != MEMTUNE else None


def _sampler(state: SearchState, parameters: StudyParameters) -> BaseSampler:
    if state.sampler == MEMTUNE:
        return MemTuneSampler(state.knowledge, parameters)
    return _OF_OPTUNA[state.sampler](zlib.crc32(state.seed.encode()))


def _tpe(seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(n_startup_trials=1, multivariate=True, group=True, seed=seed)


def _gp(seed: int) -> BaseSampler:
    return GPSampler(n_startup_trials=1, warn_independent_sampling=False, seed=seed)


_OF_OPTUNA: dict[str, Callable[[int], BaseSampler]] = {"TPE": _tpe, "GP": _gp, "Random": RandomSampler}


def _tell(study: optuna.Study, trial: optuna.Trial, state: SearchState, plan: Plan | None) -> None:
    """Tell a sampler of a plan that is not probed: what its probe measured, or by how much it cannot fit."""
    probed = [each for each in state.choice.trials if each.plan == plan]
    known = next((each for each in probed if each.fits is not None), None)
    if known is None and probed:
        study.tell(trial, state=TrialState.FAIL)
        return
    prediction = known or _predicted(state, plan)
    trial.set_constraint(FITS, violation(state.knowledge, prediction))
    study.tell(trial, values_of(state.knowledge, prediction))


def _predicted(state: SearchState, plan: Plan | None) -> Trial:
    """A trial for a plan that cannot fit, as if probed; parameters of no valid plan count as twice the GPU's memory."""
    needed = int(state.knowledge.predict(plan).device.expected) if plan else 2 * state.knowledge.usable_bytes
    known = plan or state.knowledge.plans[0]
    return Trial(0, known, fits=False, lesson=Lesson(known, device_bytes=needed))
