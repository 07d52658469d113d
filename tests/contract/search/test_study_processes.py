"""Parallel trials, failing trials and dying processes: which plans are tried then."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from optuna_user_study import EXAMPLE, manifest, truth

from memtune.planning.next_probe import SearchState, Trial
from memtune_operator.search.optuna_sampler import MemTuneSampler


def test_a_trial_that_failed_is_repeated_once() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        raise ValueError(str(sampler.plan(trial)))

    study.optimize(objective, n_trials=6, catch=ValueError)
    assert {trial.state for trial in study.trials} == {TrialState.FAIL}
    first, again, *rest = (trial.user_attrs["plan"] for trial in study.trials)
    assert first == again
    assert len({first, *rest}) == 3


DIES = """
import os, sys, optuna, yaml
from memtune_operator.search.optuna_sampler import MemTuneSampler
sampler = MemTuneSampler.for_job(yaml.safe_load(open(sys.argv[1])))
study = optuna.load_study(study_name="any", storage=sys.argv[2], sampler=sampler)
print(sampler.plan(study.ask()), flush=True)
if sys.argv[3] == "stays":
    sys.stdin.read()
os._exit(9)
"""


def test_a_plan_whose_process_died_between_ask_and_tell_is_tried_again_once(tmp_path: Path) -> None:
    def dying() -> str:
        output = subprocess.run([*command, "dies"], stdout=subprocess.PIPE, text=True, check=False, timeout=120)
        assert output.returncode == 9
        return output.stdout.strip()

    storage, path = f"sqlite:///{tmp_path}/study.db", EXAMPLE
    command = [sys.executable, "-c", DIES, str(path), storage]
    sampler = MemTuneSampler.for_job(manifest())
    study = optuna.create_study(study_name="any", storage=storage, direction="maximize", sampler=sampler)
    with subprocess.Popen([*command, "stays"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as alive:
        assert alive.stdout
        running = alive.stdout.readline().strip()
        assert str(sampler.plan(study.ask())) != running, "another process runs it"
    study = optuna.create_study(study_name="dead", storage=storage, direction="maximize", sampler=sampler)
    command[2] = DIES.replace('"any"', '"dead"')
    assert dying() == running
    assert str(sampler.plan(study.ask())) == running
    assert dying() != running, "this process runs it"
    study.tell(1, state=TrialState.FAIL)
    assert str(sampler.plan(study.ask())) != running, "it was lost twice"


def test_a_trial_that_optuna_s_heartbeat_gave_up_is_tried_again(tmp_path: Path) -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db", direction="maximize", sampler=sampler)
    trial = study.ask()
    plan = sampler.plan(trial)
    study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    assert sampler.plan(study.ask()) == plan


class SlowSampler(MemTuneSampler):
    """Threads that do not wait for each other all see the same trials."""

    def state(self, trials: Sequence[FrozenTrial]) -> SearchState:
        found = super().state(trials)
        time.sleep(0.1)
        return found


def test_parallel_trials_have_different_plans() -> None:
    sampler = SlowSampler.for_job(manifest())
    study = optuna.create_study(direction="maximize", sampler=sampler)
    together = Barrier(4)

    def objective(trial: optuna.Trial) -> float | tuple[float, float]:
        together.wait(60)
        plan = sampler.plan(trial)
        together.wait(60)
        taken, tokens_per_second = truth(sampler, plan)
        return sampler.measured(trial, tokens_per_second, int(taken))

    study.optimize(objective, n_trials=4, n_jobs=4)
    assert len({trial.user_attrs["plan"] for trial in study.trials}) == 4


class LateSampler(MemTuneSampler):
    """Reads the study once before the other process has written its choice."""

    is_late = True

    def state(self, trials: Sequence[FrozenTrial]) -> SearchState:
        seen, self.is_late = () if self.is_late else trials, False
        return super().state(seen)


def test_the_later_of_two_simultaneous_choices_gives_way() -> None:
    sampler, late = MemTuneSampler.for_job(manifest()), LateSampler.for_job(manifest())
    study = optuna.create_study(direction="maximize", sampler=sampler)
    first, second = study.ask(), study.ask()
    plan = sampler.plan(first)
    study.sampler = late
    assert late.plan(second) != plan
    third = study.ask()
    assert late.plan(third) not in (plan, sampler.plan(second))


def test_a_trials_plan_is_visible_before_all_its_parameters() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trial = study.ask()
    assert trial.suggest_float("learning_rate", 0, 1) <= 1
    other = sampler.plan(study.ask())
    assert sampler.plan(trial) != other


@pytest.mark.parametrize("ended", [None, TrialState.FAIL])
def test_an_incomplete_trial_counts_only_as_an_out_of_memory(ended: TrialState | None) -> None:
    def told(*, died: bool) -> Trial:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        trial = study.ask()
        sampler.plan(trial)
        sampler.stepped(trial, 0, 1000.0, 2**30)
        if died:
            sampler.ran_out_of_memory(trial)
        if ended:
            study.tell(trial, state=ended)
        (found,) = sampler.state(study.trials).trials
        return found

    sampler = MemTuneSampler.for_job(manifest())
    assert told(died=False).lesson is None
    lesson = told(died=True).lesson
    assert lesson is not None
    assert lesson.died
    assert told(died=True).tried
