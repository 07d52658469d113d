"""The search as a real Optuna study: its parameters, its trials, and the sampler that knows the physics."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any, Literal

import optuna
import pytest
import torch
import yaml
from optuna.trial import FrozenTrial, TrialState
from small_jobs import make_job

from memtune.acquisition import SearchState, Trial, most_promising, promise
from memtune.decide.model import model_of
from memtune.knowledge import Lesson, Model
from memtune.plan import Plan
from memtune.space import BOTH
from memtune.spec.status import Status
from memtune_operator.pruner import MemTunePruner
from memtune_operator.sampler import MemTuneSampler
from memtune_operator.search import propose
from memtune_operator.study import FITS, all_parameters, directions_of, distributions_of, frozen, thawed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model() -> Model:
    return model_of(make_job(), Status(), None)


def fitted(model: Model, number: int, plan: Plan, score: float = 1000.0) -> Trial:
    """A trial that took what was predicted."""
    taken = int(model.predict(plan).device.expected)
    return Trial(number, plan, True, score=score, lesson=Lesson(plan, 0, 0, taken, 1.5))


def died(number: int, plan: Plan, demanded_bytes: int = 0) -> Trial:
    return Trial(number, plan, False, died=True, lesson=Lesson(plan, died=True, demanded_bytes=demanded_bytes))


def after(model: Model, *trials: Trial) -> SearchState:
    lessons = tuple(trial.lesson for trial in trials if trial.lesson)
    return SearchState(replace(model, lessons=lessons), trials)


def test_the_most_promising_plan_comes_first(model: Model) -> None:
    question = SearchState(model, ()).question
    assert propose(SearchState(model, ())) == max(question.candidates, key=lambda each: promise(question, each)).plan


def test_the_study_proposes_what_the_acquisition_chose_after_every_kind_of_trial(model: Model) -> None:
    plans = [candidate.plan for candidate in SearchState(model, ()).question.candidates]
    tight = replace(fitted(model, 3, plans[2]), fits=False)
    running = Trial(4, plans[3], is_running=True)
    lost = Trial(5, plans[4], tried=False)
    trials = (died(1, plans[0], 9 * 2**30), fitted(model, 2, plans[1]), tight, running, lost)
    for count in range(len(trials) + 1):
        state = after(model, *trials[:count])
        assert propose(state) == most_promising(state), count
        assert propose(state) == propose(after(model, *trials[:count]))


def test_a_plan_that_was_tried_or_runs_is_not_proposed_but_one_that_was_taken_away_is(model: Model) -> None:
    first = propose(SearchState(model, ()))
    assert first is not None
    assert propose(after(model, Trial(1, first, is_running=True))) != first
    assert propose(after(model, Trial(1, first))) != first  # it hung, or failed
    assert propose(after(model, Trial(1, first, tried=False))) == first


def test_nothing_is_proposed_when_everything_was_tried(model: Model) -> None:
    trials = [Trial(number, plan) for number, plan in enumerate(model.plans, 1)]
    assert propose(after(model, *trials)) is None


def test_the_trials_of_a_study_say_all_that_the_search_knows(model: Model) -> None:
    plans = [candidate.plan for candidate in SearchState(model, ()).question.candidates]
    slow = replace(fitted(model, 3, plans[2], 400.0), pruned=True, steps=((2, 390.0), (3, 410.0)))
    running = Trial(4, plans[3], is_running=True)
    trials = (died(1, plans[0], 9 * 2**30), fitted(model, 2, plans[1]), slow, running)
    state = after(model, *trials)
    parameters = all_parameters(state)
    study = optuna.create_study(direction="maximize")
    study.add_trials([frozen(state.model, parameters, trial) for trial in trials])
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED", "RUNNING"]
    assert study.trials[2].intermediate_values == {2: 390.0, 3: 410.0}
    assert tuple(thawed(state.model, parameters, trial) for trial in study.trials) == trials
    assert set(study.trials[1].params) == set(parameters.values_of(plans[1])) <= set(distributions_of(parameters))
    # An out-of-memory never wins, and by how much it was above its limit is told.
    assert study.best_trial.user_attrs["plan"] == str(plans[1])
    assert study.trials[0].constraints is not None
    assert study.trials[0].constraints[FITS] == pytest.approx(9 * 2**30 / model.usable_bytes - (1 - model.headroom))


def test_a_plan_that_the_space_has_no_more_is_still_a_trial(model: Model) -> None:
    gone = Plan.parse("bf16-z3-every4-mb1x8-oopt")
    assert gone not in model.plans
    state = after(model, fitted(model, 1, gone))
    parameters = all_parameters(state)
    assert parameters.plan_of(parameters.values_of(gone)) == gone
    assert propose(state) == most_promising(state)


OF_OPTUNA = ["TPE", "GP", "Random"]


def searched(model: Model, sampler: str, count: int) -> list[Plan]:
    """The plans of so many probes; what is a fifth larger than predicted runs out of memory above the GPU's end."""
    trials: tuple[Trial, ...] = ()
    for number in range(1, count + 1):
        state = replace(after(model, *trials), sampler=sampler, seed=f"uid/{number}")
        plan = propose(state)
        if plan is None:
            break
        assert plan in [candidate.plan for candidate in state.question.candidates]
        assert propose(replace(state, trials=tuple(trials))) == plan  # as after a restart
        found = model.predict(plan)
        is_large = found.device.expected * 1.2 > model.usable_bytes
        fitting = fitted(model, number, plan, found.tokens_per_second.expected)
        trials = (*trials, died(number, plan) if is_large else fitting)
    return [trial.plan for trial in trials]


@pytest.mark.parametrize("sampler", OF_OPTUNA)
def test_a_sampler_of_optuna_s_starts_from_the_prior_and_proposes_only_what_can_fit(model: Model, sampler: str) -> None:
    own, others = searched(model, "MemTune", 3), searched(model, sampler, 6)
    assert others[:3] == own
    assert len(set(others)) == 6


def test_each_sampler_goes_its_own_way(model: Model) -> None:
    assert len({tuple(searched(model, sampler, 7)) for sampler in ("MemTune", *OF_OPTUNA)}) == 4


def test_the_seed_is_the_job_s_and_the_probe_s(model: Model) -> None:
    trials = [fitted(model, number, plan) for number, plan in enumerate(searched(model, "MemTune", 3), 1)]
    state = replace(after(model, *trials), sampler="Random")
    found = {propose(replace(state, seed=f"{job}/4")) for job in "abcdefgh"}
    assert len(found) > 1


@pytest.mark.parametrize("sampler", OF_OPTUNA)
def test_a_sampler_of_optuna_s_finds_the_last_plan_and_then_nothing(model: Model, sampler: str) -> None:
    *tried, last = [candidate.plan for candidate in SearchState(model, ()).question.candidates]
    trials = tuple(Trial(number, plan) for number, plan in enumerate(tried, 1))
    state = replace(after(model, *trials), sampler=sampler)
    assert propose(state) == last
    assert propose(replace(state, trials=(*trials, Trial(99, last, is_running=True)))) is None


@pytest.mark.parametrize("sampler", ["MemTune", *OF_OPTUNA])
def test_with_both_objectives_every_sampler_knows_both_values_of_a_trial(model: Model, sampler: str) -> None:
    both = replace(model, objective=BOTH)
    plans = searched(both, sampler, 6)
    assert len(set(plans)) == 6
    trials = tuple(replace(fitted(both, number, plan), free_bytes=2.0**30) for number, plan in enumerate(plans, 1))
    state = after(both, *trials, died(7, both.plans[-1]))
    parameters = all_parameters(state)
    study = optuna.create_study(directions=directions_of(both))
    study.add_trials([frozen(state.model, parameters, trial) for trial in state.trials])
    assert [trial.values for trial in study.trials] == [[1000.0, 2.0**30]] * 6 + [[0.0, 0.0]]
    assert tuple(thawed(state.model, parameters, trial) for trial in study.trials) == state.trials


def measured_study(sampler: MemTuneSampler, storage: str | None = None, trials: int = 6) -> optuna.Study:
    study = optuna.create_study(
        study_name="any",
        directions=directions_of(sampler.state([]).model),
        sampler=sampler,
        storage=storage,
        load_if_exists=True,
    )

    def objective(trial: optuna.Trial) -> float | tuple[float, float]:
        plan = sampler.plan(trial)
        trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True)
        taken, tokens_per_second = truth(sampler, plan)
        if taken > usable_bytes:
            return sampler.ran_out_of_memory(trial, int(usable_bytes * 1.01))
        return sampler.measured(trial, tokens_per_second, int(taken))

    usable_bytes = sampler.state([]).model.usable_bytes
    study.optimize(objective, n_trials=trials)
    return study


def truth(sampler: MemTuneSampler, plan: Plan) -> tuple[float, float]:
    """Bytes and tokens per second: a fifth more memory than predicted, and a third less speed."""
    found = sampler.state([]).model.predict(plan)
    return found.device.expected * 1.2, found.tokens_per_second.expected / 1.5


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "llama-7b-8gpu.yaml").read_text())
    return found


def test_the_sampler_does_not_guess_the_gpu() -> None:
    job = manifest()
    del job["spec"]["resources"]["gpuProduct"], job["spec"]["resources"]["gpuMemory"]
    with pytest.raises(ValueError, match=r"set resources\.gpuProduct or gpuMemory"):
        MemTuneSampler.for_job(job)


@pytest.mark.parametrize("of", [MemTuneSampler, MemTunePruner])
def test_a_gpu_that_the_table_does_not_have_is_named(of: type[MemTuneSampler | MemTunePruner]) -> None:
    job = manifest()
    del job["spec"]["resources"]["gpuMemory"]
    job["spec"]["resources"]["gpuProduct"] = "h200x"
    with pytest.raises(ValueError, match=r"gpuProduct h200x is unknown \(did you mean .*; correct it"):
        of.for_job(job)


def test_nothing_is_tried_where_nothing_fits() -> None:
    job = manifest()
    job["spec"]["resources"]["gpuMemory"] = "4Gi"
    sampler = MemTuneSampler.for_job(job)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    with pytest.raises(
        ValueError, match=r"No plan fits: .* needs 20\.\d GiB, the GPU has 4\.0 GiB\. What would help: "
    ):
        sampler.plan(study.ask())


def test_a_study_whose_plans_all_ran_out_of_memory_tries_none_twice() -> None:
    job = manifest()
    job["spec"]["tuning"]["space"] |= {"checkpointing": ["full"], "zeroStages": [3], "backends": ["fsdp"]}
    sampler = MemTuneSampler.for_job(job)
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def dies(trial: optuna.Trial) -> float | tuple[float, float]:
        sampler.plan(trial)
        return sampler.ran_out_of_memory(trial)

    study.optimize(dies, n_trials=20)
    with pytest.raises(ValueError, match=r"No plan .*fits"):
        study.optimize(dies, n_trials=1)
    plans = [trial.user_attrs["plan"] for trial in study.trials if "plan" in trial.user_attrs]
    assert 0 < len(plans) == len(set(plans)) < 20


def test_a_worker_without_a_plan_is_pruned_while_others_run_the_rest() -> None:
    job = manifest()
    job["spec"]["tuning"]["space"] |= {"checkpointing": ["full"], "zeroStages": [3], "backends": ["fsdp"]}
    sampler = MemTuneSampler.for_job(job)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(len(sampler.state([]).question.candidates)):
        sampler.plan(study.ask())
    with pytest.raises(optuna.TrialPruned, match="no plan is left beside those that other trials are running"):
        sampler.plan(study.ask())


@pytest.mark.parametrize(
    ("block", "changes", "told"),
    [
        ("training", {"sequenceLength": 2048}, "sequence length 4096, now 2048"),
        ("resources", {"gpusPerNode": 4}, "GPUs 8, now 4"),
        ("tuning", {"objectives": ["memory"]}, "objective throughput, now memory"),
    ],
)
def test_a_study_of_another_job_is_refused(block: str, changes: dict[str, Any], told: str) -> None:
    study = measured_study(MemTuneSampler.for_job(manifest()), trials=1)
    job = manifest()
    job["spec"][block] |= changes
    sampler = study.sampler = MemTuneSampler.for_job(job)
    with pytest.raises(ValueError, match=rf"the study any is of another job \({told}"):
        sampler.plan(study.ask())


def test_other_headroom_goes_on_with_the_study() -> None:
    study = measured_study(MemTuneSampler.for_job(manifest()), trials=1)
    job = manifest()
    job["spec"]["tuning"]["headroom"] = "10%"
    sampler = study.sampler = MemTuneSampler.for_job(job)
    assert str(sampler.plan(study.ask())) != study.trials[0].user_attrs["plan"]


def test_constraints_of_somebody_else_say_nothing_of_memory() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trial = study.ask()
    sampler.plan(trial)
    trial.set_constraint("loss", 1.0)
    study.tell(trial, sampler.measured(trial, 1000.0, 40 * 2**30))
    assert [each.fits for each in sampler.state(study.trials).trials] == [True]


def test_a_parameter_of_the_user_s_is_drawn_anew_in_each_trial_and_by_each_sampler() -> None:
    study = optuna.create_study(study_name="any", direction="maximize")
    drawn = set()
    for _ in range(3):
        sampler = study.sampler = MemTuneSampler.for_job(manifest())
        trial = study.ask()
        sampler.plan(trial)
        drawn |= {trial.suggest_float(name, 0.0, 1.0) for name in ("dropout", "decay")}
    assert len(drawn) == 6


def test_the_sampler_serves_a_study_of_anybody_s() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = measured_study(sampler, trials=50)
    plans = [trial.user_attrs["plan"] for trial in study.trials]
    # It ends by itself, and repeats no plan.
    assert 1 < len(plans) == len(set(plans)) < 12
    assert all("learning_rate" in trial.params for trial in study.trials)
    limit = sampler.state([]).model.usable_bytes * 0.94
    truths = [truth(sampler, plan) for plan in sampler.state([]).model.plans]
    assert study.best_value >= 0.97 * max(speed for taken, speed in truths if taken <= limit)


def test_the_sampler_goes_on_from_a_storage_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    def plans(study: optuna.Study) -> list[str]:
        return [trial.user_attrs["plan"] for trial in study.trials]

    storage = f"sqlite:///{tmp_path}/study.db"
    whole = plans(measured_study(MemTuneSampler.for_job(manifest()), trials=4))
    for count in range(1, 5):
        study = measured_study(MemTuneSampler.for_job(manifest()), storage, trials=1)
        assert plans(study) == whole[:count]


def test_a_study_of_both_objectives_ends_with_a_front() -> None:
    job = manifest()
    job["spec"]["tuning"]["objectives"] = ["throughput", "memory"]
    study = measured_study(MemTuneSampler.for_job(job), trials=50)
    assert 2 < len(study.trials) < 50
    assert len(study.best_trials) > 2
    smallest = max(study.best_trials, key=lambda trial: trial.values[1])
    fastest = max(study.best_trials, key=lambda trial: trial.values[0])
    assert smallest.params["micro_batch"] == 1
    assert fastest.values[0] > 1.1 * smallest.values[0]


def test_what_the_study_measured_corrects_the_prediction() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = measured_study(sampler, trials=1)
    state = sampler.state(study.trials)
    (lesson,) = state.model.lessons
    assert state.model.predict(lesson.plan) != MemTuneSampler.for_job(manifest()).state([]).model.predict(lesson.plan)


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
from memtune_operator.sampler import MemTuneSampler
sampler = MemTuneSampler.for_job(yaml.safe_load(open(sys.argv[1])))
study = optuna.load_study(study_name="any", storage=sys.argv[2], sampler=sampler)
print(sampler.plan(study.ask()), flush=True)
if sys.argv[3] == "stays":
    sys.stdin.read()
os._exit(9)
"""


def test_a_plan_whose_process_died_between_ask_and_tell_is_tried_again_once(tmp_path: Path) -> None:
    def dying() -> str:
        told = subprocess.run([*command, "dies"], stdout=subprocess.PIPE, text=True, check=False, timeout=120)
        assert told.returncode == 9
        return told.stdout.strip()

    storage, path = f"sqlite:///{tmp_path}/study.db", ROOT / "examples" / "llama-7b-8gpu.yaml"
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


def test_a_failed_trial_of_a_job_s_own_study_says_whether_its_plan_is_given_up(model: Model) -> None:
    first = propose(SearchState(model, ()))
    assert first is not None
    taken_away = [Trial(number, first, tried=False) for number in (1, 2, 3)]
    assert propose(after(model, *taken_away)) == first
    assert propose(after(model, *taken_away, Trial(4, first))) != first


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


def test_what_a_trial_chose_is_seen_before_it_has_all_its_parameters() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trial = study.ask()
    assert trial.suggest_float("learning_rate", 0, 1) <= 1
    other = sampler.plan(study.ask())
    assert sampler.plan(trial) != other


@pytest.mark.parametrize("ended", [None, TrialState.FAIL])
def test_half_a_trial_teaches_nothing_but_an_out_of_memory(ended: TrialState | None) -> None:
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


def test_a_combination_that_no_plan_has_is_pruned() -> None:
    job = manifest()
    job["spec"]["tuning"] = {
        "space": {"backends": ["ddp", "fsdp"], "offload": ["none", "activations", "optimizer+parameters"]}
    }
    sampler = MemTuneSampler.for_job(job)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial({"sharding": "ddp", "offload": "optimizer+parameters"})
    with pytest.raises(
        optuna.TrialPruned, match=r"no plan that the job allows has all of .*'offload': 'optimizer.parameters'"
    ):
        sampler.plan(study.ask())


@pytest.mark.parametrize(
    ("objectives", "directions", "needed"),
    [
        (["throughput"], ["minimize"], "one objective with direction 'maximize'"),
        (["memory"], ["maximize", "maximize"], "one objective with direction 'maximize'"),
        (["throughput", "memory"], ["maximize"], "two objectives with directions 'maximize'"),
    ],
)
def test_a_study_of_other_objectives_is_refused(
    objectives: list[str], directions: list[Literal["minimize", "maximize"]], needed: str
) -> None:
    job = manifest()
    job["spec"]["tuning"]["objectives"] = objectives
    sampler = MemTuneSampler.for_job(job)
    study = optuna.create_study(directions=directions, sampler=sampler)
    with pytest.raises(ValueError, match=f"needs a study of {needed}, as the job's tuning.objectives say"):
        sampler.plan(study.ask())


def test_trials_of_something_else_are_left_out(model: Model) -> None:
    other: FrozenTrial = optuna.create_trial(
        value=1.0, params={"x": 0.5}, distributions={"x": optuna.distributions.FloatDistribution(0, 1)}
    )
    assert MemTuneSampler(model).state([other]).trials == ()


def snippet_of_docs(number: int) -> str:
    found: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "search.md").read_text(), flags=re.DOTALL)
    return found[number]


def test_the_documented_study_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest()))
    probed: list[Plan] = []

    def measure(plan: Plan) -> tuple[float, int]:
        probed.append(plan)
        if len(probed) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return 1000.0, 50 * 2**30

    found: dict[str, Any] = {"measure": measure}
    exec(snippet_of_docs(0), found)
    trials = found["study"].trials
    assert [trial.user_attrs["plan"] for trial in trials] == [str(plan) for plan in probed]
    assert [trial.constraints[FITS] > 0 for trial in trials[:2]] == [True, False]


def test_the_documented_pruner_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest()))
    probed: list[Plan] = []

    def steps_of(plan: Plan) -> list[tuple[float, int]]:
        probed.append(plan)
        if len(probed) == 2:
            raise torch.OutOfMemoryError
        return [(1000.0 if len(probed) == 1 else 100.0, 40 * 2**30)] * 5

    found: dict[str, Any] = {"steps_of": steps_of}
    exec(snippet_of_docs(1), found)
    trials = found["study"].trials
    assert [trial.state.name for trial in trials[:3]] == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert [trial.value for trial in trials[:2]] == [1000.0, 0.0]
    assert len(trials[2].intermediate_values) < 5


def test_of_two_objectives_optuna_prunes_nothing() -> None:
    job = manifest()
    job["spec"]["tuning"]["objectives"] = ["throughput", "memory"]
    sampler = MemTuneSampler.for_job(job)
    study = optuna.create_study(directions=["maximize"] * 2, sampler=sampler, pruner=MemTunePruner.for_job(job))
    trial = study.ask()
    sampler.plan(trial)
    sampler.stepped(trial, 1, 1000.0, 40 * 2**30)
    with pytest.raises(NotImplementedError, match="multi-objective"):
        trial.should_prune()
