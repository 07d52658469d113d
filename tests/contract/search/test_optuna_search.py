"""The search as a real Optuna study: its parameters, its trials, and the physics-aware sampler."""

from __future__ import annotations

from dataclasses import replace

import optuna
import pytest
from optuna.trial import FrozenTrial
from small_jobs import make_job

from memtune.api.status import Status
from memtune.controller.job_knowledge import knowledge_of
from memtune.planning.knowledge import Lesson, PlanKnowledge
from memtune.planning.next_probe import SearchState, Trial, most_promising, promise
from memtune.planning.space import BOTH
from memtune.plans.plan import Plan
from memtune_operator.search.optuna_sampler import MemTuneSampler
from memtune_operator.search.optuna_search import propose
from memtune_operator.search.study import FITS, all_parameters, directions_of, distributions_of, frozen, to_trial


@pytest.fixture(scope="module")
def knowledge() -> PlanKnowledge:
    return knowledge_of(make_job(), Status(), None)


@pytest.fixture(scope="module")
def roomy() -> PlanKnowledge:
    """A GPU on which more plans fit than a search has probes."""
    return knowledge_of(make_job(resources={"nodes": 1, "gpusPerNode": 1, "gpuMemory": "10Gi"}), Status(), None)


def fitted(knowledge: PlanKnowledge, number: int, plan: Plan, score: float = 1000.0) -> Trial:
    """Return a trial that measured what was predicted."""
    taken = int(knowledge.predict(plan).device.expected)
    return Trial(number, plan, True, score=score, lesson=Lesson(plan, 0, 0, taken, 1.5))


def died(number: int, plan: Plan, demanded_bytes: int = 0) -> Trial:
    return Trial(number, plan, False, died=True, lesson=Lesson(plan, died=True, demanded_bytes=demanded_bytes))


def after(knowledge: PlanKnowledge, *trials: Trial) -> SearchState:
    lessons = tuple(trial.lesson for trial in trials if trial.lesson)
    return SearchState(replace(knowledge, lessons=lessons), trials)


def test_the_most_promising_plan_comes_first(knowledge: PlanKnowledge) -> None:
    question = SearchState(knowledge, ()).choice
    assert (
        propose(SearchState(knowledge, ())) == max(question.candidates, key=lambda each: promise(question, each)).plan
    )


def test_the_study_proposes_the_acquisitions_choice_after_every_kind_of_trial(knowledge: PlanKnowledge) -> None:
    plans = [candidate.plan for candidate in SearchState(knowledge, ()).choice.candidates]
    tight = replace(fitted(knowledge, 3, plans[2]), fits=False)
    running = Trial(4, plans[3], is_running=True)
    lost = Trial(5, plans[4], tried=False)
    trials = (died(1, plans[0], 9 * 2**30), fitted(knowledge, 2, plans[1]), tight, running, lost)
    for count in range(len(trials) + 1):
        state = after(knowledge, *trials[:count])
        assert propose(state) == most_promising(state), count
        assert propose(state) == propose(after(knowledge, *trials[:count]))


def as_stale(trial: Trial) -> Trial:
    lesson = replace(trial.lesson, stale=True) if trial.lesson else None
    return replace(trial, lesson=lesson, stale=True, tried=False)


def test_a_stale_trial_enters_the_study_and_counts_less(knowledge: PlanKnowledge) -> None:
    plans = [candidate.plan for candidate in SearchState(knowledge, ()).choice.candidates]
    trials = (fitted(knowledge, 1, plans[0], 1e9), died(2, plans[1], 9 * 2**30))
    state = after(knowledge, *map(as_stale, trials))
    parameters = all_parameters(state)
    study = optuna.create_study(direction="maximize")
    study.add_trials([frozen(state.knowledge, parameters, trial) for trial in state.trials])
    assert [trial.user_attrs["stale"] for trial in study.trials] == [True, True]
    assert MemTuneSampler(knowledge, parameters).state(study.trials) == state
    assert propose(state) == most_promising(state)
    assert state.choice.incumbent == 0, "what another driver reached is not to be beaten"
    assert {plans[0], plans[1]} & {candidate.plan for candidate in state.choice.candidates} == {plans[0]}
    for sampler in OF_OPTUNA:
        assert propose(replace(state, sampler=sampler)) in set(knowledge.plans)


def test_only_disrupted_plans_are_proposed_again(knowledge: PlanKnowledge) -> None:
    first = propose(SearchState(knowledge, ()))
    assert first is not None
    assert propose(after(knowledge, Trial(1, first, is_running=True))) != first
    assert propose(after(knowledge, Trial(1, first))) != first  # it hung or failed
    assert propose(after(knowledge, Trial(1, first, tried=False))) == first


def test_nothing_is_proposed_when_everything_was_tried(knowledge: PlanKnowledge) -> None:
    trials = [Trial(number, plan) for number, plan in enumerate(knowledge.plans, 1)]
    assert propose(after(knowledge, *trials)) is None


def test_the_trials_of_a_study_say_all_that_the_search_knows(knowledge: PlanKnowledge) -> None:
    plans = [candidate.plan for candidate in SearchState(knowledge, ()).choice.candidates]
    slow = replace(fitted(knowledge, 3, plans[2], 400.0), pruned=True, steps=((2, 390.0), (3, 410.0)))
    running = Trial(4, plans[3], is_running=True)
    trials = (died(1, plans[0], 9 * 2**30), fitted(knowledge, 2, plans[1]), slow, running)
    state = after(knowledge, *trials)
    parameters = all_parameters(state)
    study = optuna.create_study(direction="maximize")
    study.add_trials([frozen(state.knowledge, parameters, trial) for trial in trials])
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED", "RUNNING"]
    assert study.trials[2].intermediate_values == {2: 390.0, 3: 410.0}
    assert tuple(to_trial(state.knowledge, parameters, trial) for trial in study.trials) == trials
    assert set(study.trials[1].params) == set(parameters.values_of(plans[1])) <= set(distributions_of(parameters))
    # An out-of-memory never wins, and its excess is recorded.
    assert study.best_trial.user_attrs["plan"] == str(plans[1])
    assert study.trials[0].constraints is not None
    assert study.trials[0].constraints[FITS] == pytest.approx(
        9 * 2**30 / knowledge.usable_bytes - (1 - knowledge.headroom)
    )


def test_a_plan_removed_from_the_space_is_still_a_trial(knowledge: PlanKnowledge) -> None:
    gone = Plan.parse("bf16-z3-every4-mb1x8-oopt")
    assert gone not in knowledge.plans
    state = after(knowledge, fitted(knowledge, 1, gone))
    parameters = all_parameters(state)
    assert parameters.plan_of(parameters.values_of(gone)) == gone
    assert propose(state) == most_promising(state)


def test_a_closed_trial_enters_the_study_as_measured_and_is_no_target(knowledge: PlanKnowledge) -> None:
    plans = [candidate.plan for candidate in SearchState(knowledge, ()).choice.candidates]
    gone = replace(fitted(knowledge, 1, Plan.parse("bf16-z3-every4-mb1x8-oopt"), 1e9), closed=True)
    state = after(knowledge, gone, fitted(knowledge, 2, plans[0]))
    parameters = all_parameters(state)
    study = optuna.create_study(direction="maximize")
    study.add_trials([frozen(state.knowledge, parameters, trial) for trial in state.trials])
    assert study.trials[0].value == 1e9
    assert MemTuneSampler(knowledge, parameters).state(study.trials) == state
    assert state.choice.incumbent == 1000.0
    assert propose(state) == most_promising(state)
    for sampler in OF_OPTUNA:
        assert propose(replace(state, sampler=sampler)) in set(knowledge.plans)


def test_optunas_samplers_do_not_see_closed_trials(knowledge: PlanKnowledge) -> None:
    plans = [candidate.plan for candidate in SearchState(knowledge, ()).choice.candidates]
    own = [fitted(knowledge, number, plan) for number, plan in enumerate(plans[:3], 1)]
    gone = [replace(fitted(knowledge, 4, Plan.parse("bf16-z3-every4-mb1x8-oopt"), 1e9), closed=True)]
    known = after(knowledge, *own, *gone)
    for sampler in OF_OPTUNA:
        with_closed, without = (
            replace(known, trials=tuple(trials), sampler=sampler) for trials in ([*own, *gone], own)
        )
        assert propose(with_closed) == propose(without)


OF_OPTUNA = ["TPE", "GP", "Random"]


def searched(knowledge: PlanKnowledge, sampler: str, count: int) -> list[Plan]:
    """Return the plans of ``count`` probes that need a fifth more than predicted, and may run out of memory."""
    trials: tuple[Trial, ...] = ()
    for number in range(1, count + 1):
        state = replace(after(knowledge, *trials), sampler=sampler, seed=f"uid/{number}")
        plan = propose(state)
        if plan is None:
            break
        assert plan in [candidate.plan for candidate in state.choice.candidates]
        assert propose(replace(state, trials=tuple(trials))) == plan  # as after a restart
        found = knowledge.predict(plan)
        is_large = found.device.expected * 1.2 > knowledge.usable_bytes
        fitting = fitted(knowledge, number, plan, found.tokens_per_second.expected)
        trials = (*trials, died(number, plan) if is_large else fitting)
    return [trial.plan for trial in trials]


@pytest.mark.parametrize("sampler", OF_OPTUNA)
def test_optunas_samplers_start_from_the_prior_and_propose_only_plans_that_can_fit(
    knowledge: PlanKnowledge, sampler: str
) -> None:
    own, others = searched(knowledge, "MemTune", 3), searched(knowledge, sampler, 6)
    assert others[:3] == own
    assert len(set(others)) == 6


def test_each_sampler_goes_its_own_way(roomy: PlanKnowledge) -> None:
    assert len({tuple(searched(roomy, sampler, 7)) for sampler in ("MemTune", *OF_OPTUNA)}) == 4


def test_the_seed_follows_from_job_and_probe(knowledge: PlanKnowledge) -> None:
    trials = [fitted(knowledge, number, plan) for number, plan in enumerate(searched(knowledge, "MemTune", 3), 1)]
    state = replace(after(knowledge, *trials), sampler="Random")
    found = {propose(replace(state, seed=f"{job}/4")) for job in "abcdefgh"}
    assert len(found) > 1


@pytest.mark.parametrize("sampler", OF_OPTUNA)
def test_optunas_samplers_find_the_last_plan_and_then_nothing(knowledge: PlanKnowledge, sampler: str) -> None:
    *tried, last = [candidate.plan for candidate in SearchState(knowledge, ()).choice.candidates]
    trials = tuple(Trial(number, plan) for number, plan in enumerate(tried, 1))
    state = replace(after(knowledge, *trials), sampler=sampler)
    assert propose(state) == last
    assert propose(replace(state, trials=(*trials, Trial(99, last, is_running=True)))) is None


@pytest.mark.parametrize("sampler", ["MemTune", *OF_OPTUNA])
def test_with_both_objectives_every_sampler_knows_both_values_of_a_trial(roomy: PlanKnowledge, sampler: str) -> None:
    both = replace(roomy, objective=BOTH)
    plans = searched(both, sampler, 6)
    assert len(set(plans)) == 6
    trials = tuple(replace(fitted(both, number, plan), free_bytes=2.0**30) for number, plan in enumerate(plans, 1))
    state = after(both, *trials, died(7, both.plans[-1]))
    parameters = all_parameters(state)
    study = optuna.create_study(directions=directions_of(both))
    study.add_trials([frozen(state.knowledge, parameters, trial) for trial in state.trials])
    assert [trial.values for trial in study.trials] == [[1000.0, 2.0**30]] * 6 + [[0.0, 0.0]]
    assert tuple(to_trial(state.knowledge, parameters, trial) for trial in study.trials) == state.trials


def test_a_failed_trial_of_a_job_s_own_study_says_whether_its_plan_is_given_up(knowledge: PlanKnowledge) -> None:
    first = propose(SearchState(knowledge, ()))
    assert first is not None
    taken_away = [Trial(number, first, tried=False) for number in (1, 2, 3)]
    assert propose(after(knowledge, *taken_away)) == first
    assert propose(after(knowledge, *taken_away, Trial(4, first))) != first


def test_trials_of_something_else_are_left_out(knowledge: PlanKnowledge) -> None:
    other: FrozenTrial = optuna.create_trial(
        value=1.0, params={"x": 0.5}, distributions={"x": optuna.distributions.FloatDistribution(0, 1)}
    )
    assert MemTuneSampler(knowledge).state([other]).trials == ()
