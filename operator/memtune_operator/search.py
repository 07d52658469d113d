"""Which plan to probe next, asked of an Optuna study that is made anew from what the status records of each probe."""

from __future__ import annotations

import optuna

from memtune.acquisition import SearchState
from memtune.plan import Plan
from memtune_operator.sampler import MemTuneSampler
from memtune_operator.study import all_parameters, frozen, suggesting


def propose(state: SearchState) -> Plan | None:
    """The plan to probe next, None if none is worth it."""
    parameters = all_parameters(state)
    study = optuna.create_study(direction="maximize", sampler=MemTuneSampler(state.model, parameters))
    study.add_trials([frozen(state.model, parameters, trial) for trial in state.trials])
    plan = parameters.plan(suggesting(study.ask()))
    # A sampler has to answer something, be it a plan that was tried.
    return plan if any(candidate.plan == plan for candidate in state.question.candidates) else None
