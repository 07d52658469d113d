"""The pruner in a user's study, together with the sampler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from memtune.planning.next_probe import target_of
from memtune.plans.plan import Plan
from memtune_operator.search.pruner import MemTunePruner
from memtune_operator.search.sampler import MemTuneSampler, model_for
from memtune_runner.rank.probe import Probe

GIB = 2**30
Steps = Callable[[int, Plan], list[tuple[float, int]]]


def manifest(objective: str = "throughput") -> dict[str, Any]:
    path = Path(__file__).parents[3] / "examples" / "llama-7b-8gpu.yaml"
    job: dict[str, Any] = yaml.safe_load(path.read_text())
    job["spec"].setdefault("tuning", {})["objectives"] = [objective]
    return job


def studied(job: dict[str, Any], steps: Steps, trials: int) -> tuple[MemTuneSampler, optuna.Study]:
    sampler, pruner = MemTuneSampler.for_job(job), MemTunePruner.for_job(job)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)

    def objective(trial: optuna.Trial) -> float:
        plan, seen = sampler.plan(trial), (0.0, 0)
        for number, seen in enumerate(steps(trial.number, plan)):
            sampler.stepped(trial, number, *seen)
            if trial.should_prune():
                raise optuna.TrialPruned
        value = sampler.measured(trial, *seen)
        assert isinstance(value, float)
        return value

    study.optimize(objective, n_trials=trials)
    return sampler, study


def test_a_trial_that_cannot_win_ends_and_still_teaches() -> None:
    def steps(number: int, _: Plan) -> list[tuple[float, int]]:
        return [(10.0, 40 * GIB), *[(1000.0 if number == 0 else 500.0, 41 * GIB)] * 4]

    sampler, study = studied(manifest(), steps, 2)
    first, second = study.trials
    assert (first.state, second.state) == (TrialState.COMPLETE, TrialState.PRUNED)
    assert first.intermediate_values == {0: 10.0, 1: 1000.0, 2: 1000.0, 3: 1000.0, 4: 1000.0}
    assert second.intermediate_values == {0: 10.0, 1: 500.0}  # the first step is slow in every trial
    assert study.best_trial.number == 0
    told = sampler.state(study.trials).trials
    assert [(trial.fits, trial.score) for trial in told] == [(True, 1000.0), (True, 500.0)]
    assert [trial.lesson.device_bytes if trial.lesson else 0 for trial in told] == [41 * GIB, 41 * GIB]
    assert optuna.visualization.plot_intermediate_values(study).data


def test_a_trial_that_takes_too_much_ends_however_fast_it_is() -> None:
    def steps(number: int, _: Plan) -> list[tuple[float, int]]:
        return [(1000.0, 41 * GIB)] * 3 if number == 0 else [(5000.0, 79 * GIB)] * 3

    sampler, study = studied(manifest(), steps, 2)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.PRUNED]
    assert [trial.fits for trial in sampler.state(study.trials).trials] == [True, False]


def test_where_memory_is_the_objective_the_smaller_plan_is_to_beat() -> None:
    sizes = [50 * GIB, 40 * GIB, 45 * GIB]
    sampler, study = studied(manifest("memory"), lambda number, _: [(1.0, sizes[number])] * 3, 3)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED]
    assert study.best_trial.number == 1
    assert [len(trial.intermediate_values) for trial in study.trials] == [3, 3, 2]
    assert sampler.state(study.trials).trials[2].fits


def test_a_trial_that_was_pruned_before_it_measured_anything_taught_nothing() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        sampler.plan(trial)
        trial.report(1.0, 0)
        raise optuna.TrialPruned

    study.optimize(objective, n_trials=1)
    (told,) = sampler.state(study.trials).trials
    assert (told.fits, told.lesson, told.score) == (None, None, 0.0)


def test_a_gpu_that_is_not_known_leaves_nothing_to_beat() -> None:
    job = manifest()
    job["spec"]["resources"].pop("gpuProduct", None)
    job["spec"]["resources"].pop("gpuMemory", None)
    with pytest.raises(ValueError, match=r"set resources\.gpuProduct or gpuMemory"):
        MemTunePruner.for_job(job)


@pytest.mark.parametrize("objective", ["throughput", "memory"])
@settings(deadline=None, max_examples=40)
@given(steps=st.lists(st.tuples(st.floats(500.0, 2000.0), st.integers(0, 12)), min_size=2, max_size=6))
def test_the_runner_ends_a_probe_at_the_step_at_which_the_pruner_does(
    objective: str, steps: list[tuple[float, int]]
) -> None:
    peaks = [60 * GIB + sum(each * GIB for _, each in steps[: place + 1]) for place in range(len(steps))]
    seen = [(speed, peak) for (speed, _), peak in zip(steps, peaks, strict=True)]
    best = (1000.0, 66 * GIB)
    _, study = studied(manifest(objective), lambda number, _: [best] * 2 if number == 0 else seen, 2)
    by_study = study.trials[1]

    probe = Probe(100, target_of(model_for(manifest(objective)), *best))
    for number, (speed, peak) in enumerate(seen, 1):
        probe.stepped(number, 0)
        probe.measured(float(number), speed, peak)  # each takes longer than the one before: they are never steady
        if probe.has_enough:
            break
    assert (probe.pruned is not None) == (by_study.state is TrialState.PRUNED)
    assert number == len(by_study.intermediate_values)
