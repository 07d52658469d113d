"""MemTuneSampler: an Optuna sampler that predicts the memory and speed of a plan before it is tried.

    sampler = MemTuneSampler.for_job(yaml.safe_load(Path("job.yaml").read_text()))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(lambda trial: sampler.measured(trial, *run(sampler.plan(trial))), n_trials=8)

`run` returns a plan's tokens per second and its peak device bytes.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from threading import Lock
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from memtune.api import load_job
from memtune.api.status import Status
from memtune.api.workload import unknown_product
from memtune.controller.job_knowledge import knowledge_of
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.next_probe import SearchState, Trial, most_promising, reason_to_stop
from memtune.planning.parameters import StudyParameters, Value
from memtune.planning.space import BOTH, MEMORY
from memtune.plans.plan import Plan
from memtune_operator.search.study import (
    CHOSEN,
    DIED,
    FITS,
    PLAN,
    WORKER,
    directions_of,
    distributions_of,
    is_lost,
    suggesting,
    to_trial,
)
from memtune_operator.search.study_facts import difference, facts_of, nothing_fits
from memtune_operator.search.study_processes import this_worker

# A plan that lost so many trials may be the cause.
_MOST_LOST = 2
# The study attribute with the facts of its job.
_ASKS = "asks"
# How often a trial yields to those of other processes.
_MOST_RIVALS = 8
# Serialises the threads of a study. Outside the sampler, which must be picklable.
_CHOOSING = Lock()


class NothingFitsError(ValueError):
    """No plan of the job fits its GPU, and none is left to try."""


class MemTuneSampler(BaseSampler):
    """Proposes the plan with the greatest expected improvement times its probability of fitting.

    Both are predicted from the model and the GPU, and corrected by the measurements of the study's trials. The sampler
    is stateless: in another process, or after a restart, it proposes the same.
    """

    def __init__(self, knowledge: PlanKnowledge, parameters: StudyParameters | None = None) -> None:
        self._knowledge = knowledge
        self._parameters = parameters or StudyParameters(knowledge.plans)

    @classmethod
    def for_job(cls, manifest: dict[str, Any]) -> MemTuneSampler:
        """Create the sampler for the plans of a MemoryTunedJob manifest, which must name its GPU or its memory."""
        return cls(knowledge_for(manifest))

    def plan(self, trial: optuna.Trial) -> Plan:
        """The plan of a new trial. A trial whose parameters are no valid plan is pruned."""
        if not self._parameters.choices:
            # Without parameters Optuna does not call the sampler, and the only plan may not fit.
            _ = trial.relative_params
        plan = self._parameters.plan(suggesting(trial))
        if plan is None:
            raise optuna.TrialPruned(f"no plan that the job allows has all of {trial.params}")
        trial.set_user_attr(PLAN, str(plan))
        return plan

    def stepped(self, trial: optuna.Trial, step: int, tokens_per_second: float, device_bytes: int) -> None:
        """Record the speed and memory at the end of a step, for the pruner."""
        value = self._recorded(trial, tokens_per_second, device_bytes)
        if not isinstance(value, tuple):  # Optuna allows no intermediate values with two objectives
            trial.report(value, step)

    def measured(self, trial: optuna.Trial, tokens_per_second: float, device_bytes: int) -> float | tuple[float, float]:
        """Record the speed and memory of a plan; return the trial's value, or both values with two objectives."""
        trial.set_constraint(FITS, device_bytes / self._knowledge.usable_bytes - (1 - self._knowledge.headroom))
        return self._recorded(trial, tokens_per_second, device_bytes)

    def ran_out_of_memory(self, trial: optuna.Trial, demanded_bytes: int = 0) -> float | tuple[float, float]:
        """Record that a plan ran out of memory, with the bytes it demanded if known; return the trial's value."""
        trial.set_user_attr(DIED, True)
        trial.set_user_attr("demanded_bytes", int(demanded_bytes))
        trial.set_constraint(
            FITS, max(demanded_bytes / self._knowledge.usable_bytes, 1.0) - (1 - self._knowledge.headroom)
        )
        return (0.0, 0.0) if self._knowledge.objective == BOTH else 0.0

    def _recorded(
        self, trial: optuna.Trial, tokens_per_second: float, device_bytes: int
    ) -> float | tuple[float, float]:
        workload = self._knowledge.workload
        seconds = workload.global_batch * workload.sequence_length / tokens_per_second if tokens_per_second > 0 else 0.0
        for name, value in ((DIED, False), ("device_bytes", int(device_bytes)), ("step_seconds", seconds)):
            trial.set_user_attr(name, value)
        free_bytes = float(self._knowledge.usable_bytes - device_bytes)
        if self._knowledge.objective == BOTH:
            return tokens_per_second, free_bytes
        return free_bytes if self._knowledge.objective == MEMORY else tokens_per_second

    def state(self, trials: Sequence[FrozenTrial]) -> SearchState:
        """The state of the search, read from the trials of a study."""
        finished = tuple(_without_loops(self._read(trials)))
        lessons = tuple(trial.lesson for trial in finished if trial.lesson)
        knowledge = self._knowledge
        return SearchState(knowledge if lessons == knowledge.lessons else replace(knowledge, lessons=lessons), finished)

    def _read(self, trials: Sequence[FrozenTrial]) -> Iterator[tuple[Trial, bool]]:
        for each in trials:
            if trial := to_trial(self._knowledge, self._parameters, each):
                yield trial, is_lost(each)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Record which process runs the trial, so that others can detect that it is gone."""
        study._storage.set_trial_system_attr(trial._trial_id, WORKER, this_worker())

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All knobs are sampled together."""
        wanted = directions_of(self._knowledge)
        if study.directions != wanted:
            said = "two objectives with directions" if len(wanted) > 1 else "one objective with direction"
            raise ValueError(f"MemTuneSampler needs a study of {said} 'maximize', as the job's tuning.objectives say")
        # A study wrapped by HyperbandPruner exposes attributes only through its storage.
        storage, number = study._storage, study._study_id
        earlier = storage.get_study_user_attrs(number).get(_ASKS)
        if earlier is None:
            storage.set_study_user_attr(number, _ASKS, facts_of(self._knowledge))
        elif other := difference(earlier, self._knowledge):
            raise ValueError(f"the study {study.study_name} is of another job ({other}); begin a study of its own")
        return distributions_of(self._parameters)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Value]:
        """The parameters of the next plan, or of the best one so far if none is worth a trial."""
        with _CHOOSING:
            values = self._choose(study, trial)
            # Another process may have chosen at the same moment: the later trial yields.
            for _ in range(_MOST_RIVALS):
                if not any(_is_rival(each, trial, values) for each in study.get_trials(deepcopy=False)):
                    break
                values = self._choose(study, trial)
        return values

    def _choose(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        """Choose the next plan and record its parameters at once: Optuna sets them on the trial one by one."""
        state = self.state([each for each in study.get_trials(deepcopy=False) if each.number != trial.number])
        values = self._parameters.values_of(most_promising(state) or _best(state))
        study._storage.set_trial_system_attr(trial._trial_id, CHOSEN, values)
        return values

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Sample parameters that are not knobs at random, differently in each trial.

        Seeded by the trial number, so that another process needs no reseeding.
        """
        drawn = RandomSampler(zlib.crc32(f"{study.study_name}/{trial.number}/{param_name}".encode()))
        return drawn.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Stop ``study.optimize`` once no further plan is worth a trial."""
        ended = copy(trial)
        ended.state, ended.values = state, list(values) if values else None
        trials = [ended if each.number == trial.number else each for each in study.get_trials(deepcopy=False)]
        if reason_to_stop(self.state(trials).choice):
            with suppress(RuntimeError):  # with ask-and-tell there is no loop to stop
                study.stop()


def knowledge_for(manifest: dict[str, Any]) -> PlanKnowledge:
    """The predictions for the plans of a MemoryTunedJob manifest, before any is tried."""
    job = load_job(manifest)
    knowledge = knowledge_of(job, Status(), None)
    if knowledge.is_gpu_known:
        return knowledge
    if problem := unknown_product(job):
        raise ValueError(f"resources.gpuProduct {problem}; correct it, or set resources.gpuMemory beside it")
    raise ValueError("no plan is known to fit a GPU that is not known: set resources.gpuProduct or gpuMemory")


def _is_rival(other: FrozenTrial, trial: FrozenTrial, values: dict[str, Value]) -> bool:
    is_earlier = other.number < trial.number and other.state is TrialState.RUNNING and not is_lost(other)
    return is_earlier and other.system_attrs.get(CHOSEN) == values


def _best(state: SearchState) -> Plan:
    """The best plan so far, where none is left that promises more."""
    fitting = [trial for trial in state.choice.trials if trial.fits]
    if fitting:
        return max(fitting, key=lambda trial: trial.score).plan
    if any(trial.is_running for trial in state.trials):
        raise optuna.TrialPruned("no plan is left beside those that other trials are running")
    raise NothingFitsError(nothing_fits(state.knowledge))


def _without_loops(found: Iterable[tuple[Trial, bool]]) -> Iterator[Trial]:
    """The trials; a plan that lost too many trials counts as tried."""
    lost = Counter[Plan]()
    for trial, is_lost_one in found:
        lost[trial.plan] += is_lost_one
        yield replace(trial, tried=True) if is_lost_one and lost[trial.plan] >= _MOST_LOST else trial
