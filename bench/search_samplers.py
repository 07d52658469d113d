"""Optuna's own samplers as ways to choose the next probe, for `search.py`."""

from __future__ import annotations

import warnings

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from search_methods import Hunt
from search_tables import Outcome

from memtune.plan import Plan

optuna.logging.set_verbosity(optuna.logging.ERROR)
# A sampler may name a plan twice, or one that is ruled out. Both cost nothing here, up to so many for each
# probe that it may spend.
_ASKS_FOR_EACH_PROBE = 2


def tpe(hunt: Hunt) -> None:
    """TPE with one startup trial, its knobs sampled together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = TPESampler(n_startup_trials=1, multivariate=True, seed=hunt.random.getrandbits(31))
    _sampled(hunt, sampler)


def gp(hunt: Hunt) -> None:
    """A Gaussian process with one startup trial; its default of ten would be ten plans by lot."""
    _sampled(hunt, GPSampler(n_startup_trials=1, seed=hunt.random.getrandbits(31)))


def _sampled(hunt: Hunt, sampler: BaseSampler) -> None:
    study = optuna.create_study(direction="maximize", sampler=sampler)
    named = {_knobs(plan): plan for plan in hunt.table.possible}
    sizes = sorted({plan.micro_batch for plan in hunt.table.rows})
    space: dict[str, BaseDistribution] = {
        "sharding": CategoricalDistribution(sorted({str(plan.sharding) for plan in hunt.table.rows})),
        "checkpointing": CategoricalDistribution(sorted({str(plan.checkpointing) for plan in hunt.table.rows})),
        "size": IntDistribution(0, len(sizes) - 1),
    }
    known: dict[Plan, Outcome] = {}
    for _ in range(_ASKS_FOR_EACH_PROBE * hunt.most):
        if hunt.is_over:
            return
        trial = study.ask(space)
        plan = named.get((trial.params["sharding"], trial.params["checkpointing"], sizes[trial.params["size"]]))
        if plan and plan not in known:
            known[plan] = hunt.probe(plan)
        outcome = known[plan] if plan else Outcome(died=True)
        # As the operator tells it: the worst score, and a constraint above 0.
        trial.set_constraint("fits", -1.0 if outcome.fits else 1.0)
        study.tell(trial, outcome.tokens_per_second * outcome.fits)


def _knobs(plan: Plan) -> tuple[str, str, int]:
    return str(plan.sharding), str(plan.checkpointing), plan.micro_batch
