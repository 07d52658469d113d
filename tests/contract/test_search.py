"""The search as an Optuna study: the same question, the same answer, and infeasible plans told as such."""

from __future__ import annotations

from dataclasses import replace

import pytest
from optuna.trial import TrialState
from small_jobs import make_job

from memtune.acquisition import Question, Trial, promise
from memtune.predict.predictor import Predictor
from memtune.space import enumerate_plans, rank
from memtune.spec import gpu_of, to_workload
from memtune.spec.space import to_space
from memtune.units import GIB
from memtune_operator.search import FITS, PLAN, PlanSampler, choices, propose, study_of


@pytest.fixture(scope="module")
def question() -> Question:
    job = make_job()
    gpu = gpu_of(job)
    assert gpu is not None
    workload = to_workload(job, gpu)
    ranking = rank(workload, Predictor(workload), enumerate_plans(workload, to_space(job)), 0.06, "throughput")
    return Question(tuple(ranking.fitting[:6]), (), usable_bytes=8 * GIB, headroom=0.06, seed="u/1")


def test_the_most_promising_plan_comes_first(question: Question) -> None:
    assert propose(question) == max(question.candidates, key=lambda each: promise(question, each)).plan


def test_an_equal_question_has_an_equal_answer(question: Question) -> None:
    assert propose(question) == propose(replace(question))


def test_nothing_is_proposed_when_nothing_is_left(question: Question) -> None:
    assert propose(replace(question, candidates=())) is None


def test_the_study_is_made_anew_with_every_trial_as_it_ended(question: Question) -> None:
    plans = [candidate.plan for candidate in question.candidates]
    trials = (
        Trial(1, plans[0], fits=False, died=True),
        Trial(2, plans[1], fits=True, score=1000.0),
        Trial(3, plans[2]),
    )
    asked = replace(question, candidates=question.candidates[3:], trials=trials, incumbent=1000.0)
    study = study_of(asked, PlanSampler(plans[3]), choices(asked))
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.RUNNING]
    assert [trial.params[PLAN] for trial in study.trials] == [str(plan) for plan in plans[:3]]
    assert study.trials[0].constraints == {FITS: 1.0}
    # An out-of-memory never wins, whatever it scored before it died.
    assert study.best_trial.params[PLAN] == str(plans[1])


def test_the_choices_are_the_same_whatever_was_tried(question: Question) -> None:
    tried = replace(question, candidates=question.candidates[1:], trials=(Trial(1, question.candidates[0].plan),))
    assert choices(tried) == choices(question)
