"""Optuna's own samplers as methods to choose the next probe, for `search.py`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from search_methods import Hunt
from search_tables import Outcome

from memtune.planning.parameters import StudyParameters, Value
from memtune.plans.plan import Plan

optuna.logging.set_verbosity(optuna.logging.ERROR)
# A sampler may repeat a plan, or suggest an excluded one. Both are free here, up to this many for each probe of the
# budget.
_ASKS_FOR_EACH_PROBE = 2
_SIZE = "micro_batch"


def tpe(hunt: Hunt) -> None:
    """TPE with one startup trial and multivariate sampling."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = TPESampler(n_startup_trials=1, multivariate=True, seed=hunt.random.getrandbits(31))
    _sampled(hunt, sampler)


def gp(hunt: Hunt) -> None:
    """A Gaussian process with one startup trial; its default of ten would be ten random plans."""
    _sampled(hunt, GPSampler(n_startup_trials=1, seed=hunt.random.getrandbits(31)))


def _sampled(hunt: Hunt, sampler: BaseSampler) -> None:
    study = optuna.create_study(direction="maximize", sampler=sampler)
    choices = StudyParameters(tuple(hunt.table.rows)).choices
    sizes = choices.get(_SIZE, ())
    space: dict[str, BaseDistribution] = {
        name: IntDistribution(0, len(sizes) - 1) if name == _SIZE else CategoricalDistribution(values)
        for name, values in choices.items()
    }
    named = {_values(plan, choices): plan for plan in hunt.table.possible}
    known: dict[Plan, Outcome] = {}
    for _ in range(_ASKS_FOR_EACH_PROBE * hunt.most):
        if hunt.is_over:
            return
        chosen = study.ask(space)
        values = tuple(sizes[value] if name == _SIZE else value for name, value in chosen.params.items())
        plan = named.get(values)
        if plan and plan not in known:
            known[plan] = hunt.probe(plan)
        outcome = known[plan] if plan else Outcome(died=True)
        # As the operator does: the worst score, and a constraint above 0.
        chosen.set_constraint("fits", -1.0 if outcome.fits else 1.0)
        study.tell(chosen, outcome.tokens_per_second * outcome.fits)


def _values(plan: Plan, names: Iterable[str]) -> tuple[Value, ...]:
    """The plan's choices in the order of the parameters, as in an Optuna study."""
    own = (getattr(plan, name) for name in names)
    return tuple(value if isinstance(value, bool | int) else str(value) for value in own)
