"""The pruner in a user's study, together with the sampler."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from memtune.api import load_job
from memtune.api.status import PeakBytes, ProbeStatus
from memtune.controller.probe_target import next_target
from memtune.planning.knowledge import PlanKnowledge
from memtune.plans.plan import Plan
from memtune.wire.probe_pruning import Pruned, Target
from memtune_operator.search.optuna_pruner import MemTunePruner
from memtune_operator.search.optuna_sampler import MemTuneSampler, knowledge_for
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


@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_a_first_trial_that_takes_too_much_ends_without_one_to_beat(objective: str) -> None:
    sampler, study = studied(manifest(objective), lambda *_: [(10.0, 60 * GIB), *[(1000.0, 79 * GIB)] * 3], 1)
    (trial,) = study.trials
    assert (trial.state, len(trial.intermediate_values)) == (TrialState.PRUNED, 2)
    assert [told.fits for told in sampler.state(study.trials).trials] == [False]


def test_with_memory_as_objective_the_smallest_plan_is_the_target() -> None:
    sizes = [50 * GIB, 40 * GIB, 45 * GIB]
    sampler, study = studied(manifest("memory"), lambda number, _: [(1.0, sizes[number])] * 3, 3)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED]
    assert study.best_trial.number == 1
    assert [len(trial.intermediate_values) for trial in study.trials] == [3, 3, 2]
    assert sampler.state(study.trials).trials[2].fits


def test_a_plan_removed_from_the_space_is_no_target() -> None:
    job = manifest()
    job["spec"]["tuning"]["space"] = {"checkpointing": ["full"]}
    narrow = MemTunePruner.for_job(job)
    sampler, study = studied(manifest(), lambda *_: [(1000.0, 41 * GIB)] * 3, 1)
    assert "-full-" not in study.trials[0].user_attrs["plan"]
    trial = study.ask()
    for step in range(3):
        sampler.stepped(trial, step, 500.0, 41 * GIB)
    assert trial.should_prune()
    assert not narrow.prune(study, study.trials[1])


def test_a_stale_trial_is_no_target() -> None:
    sampler, study = studied(manifest(), lambda *_: [(1000.0, 41 * GIB)] * 3, 1)
    stale = copy(study.trials[0])
    stale.user_attrs = {**stale.user_attrs, "stale": True}
    later = optuna.create_study(direction="maximize", pruner=MemTunePruner.for_job(manifest()))
    later.add_trial(stale)
    trial = later.ask()
    for step in range(3):
        sampler.stepped(trial, step, 500.0, 41 * GIB)
    assert not trial.should_prune()


def test_a_trial_pruned_before_a_measurement_is_ignored() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        sampler.plan(trial)
        trial.report(1.0, 0)
        raise optuna.TrialPruned

    study.optimize(objective, n_trials=1)
    (told,) = sampler.state(study.trials).trials
    assert (told.fits, told.lesson, told.score) == (None, None, 0.0)


def test_on_an_unknown_gpu_there_is_no_target() -> None:
    job = manifest()
    job["spec"]["resources"].pop("gpuProduct", None)
    job["spec"]["resources"].pop("gpuMemory", None)
    with pytest.raises(ValueError, match=r"set resources\.gpuProduct or gpuMemory"):
        MemTunePruner.for_job(job)


Seen = list[tuple[int, int]]


def ended_by_runner(steps: Seen, target: Target) -> tuple[Pruned | None, Seen]:
    """Why the runner ends a probe early, if it does, and the steps until then."""
    probe = Probe(100, target)
    for number, (speed, peak) in enumerate(steps, 1):
        probe.stepped(number, 0)
        probe.measured(float(number), speed, peak)  # each takes longer than the one before: they are never steady
        if probe.has_enough:
            return probe.pruned, steps[:number]
    return None, steps


def with_peaks(steps: Seen) -> Seen:
    """Steps whose peaks only rise; each is given by how many GiB it is above the one before."""
    return [(speed, (60 + sum(more for _, more in steps[: place + 1])) * GIB) for place, (speed, _) in enumerate(steps)]


PROBES = st.lists(st.tuples(st.integers(500, 2000), st.integers(0, 12)), min_size=2, max_size=6).map(with_peaks)


@cache
def knowledge_of_job(objective: str) -> PlanKnowledge:
    return knowledge_for(manifest(objective))


@pytest.mark.parametrize("objective", ["throughput", "memory"])
@settings(deadline=None, max_examples=60)
@given(probes=st.lists(PROBES, min_size=1, max_size=4))
def test_optuna_s_own_pruning_ends_the_trials_of_a_job_at_the_steps_at_which_the_runner_ended_its_probes(
    objective: str, probes: list[Seen]
) -> None:
    job, knowledge = load_job(manifest(objective)), knowledge_of_job(objective)
    sampler = MemTuneSampler(knowledge)
    study = optuna.create_study(direction="maximize", sampler=RandomSampler(0), pruner=MemTunePruner(knowledge))
    records = list[ProbeStatus]()
    for number, steps in enumerate(probes, 1):
        why, made = ended_by_runner(steps, next_target(job, knowledge, records))
        speed, peak = made[-1]
        records.append(
            ProbeStatus(
                name=f"probe-{number}",
                number=number,
                plan=str(knowledge.plans[number]),
                verdict="succeeded",
                ended_at="2026-03-01T10:00:00Z",
                tokens_per_second=speed,
                peak_bytes=PeakBytes(allocated=1, active=1, reserved=1, device=peak, total=80 * GIB),
                pruned=why.value if why else "",
            )
        )
        trial = study.ask()
        for step, seen in enumerate(steps):
            sampler.stepped(trial, step, *seen)
            if trial.should_prune():
                study.tell(trial, state=TrialState.PRUNED)
                break
        else:
            study.tell(trial, sampler.measured(trial, *seen))
        told = study.trials[-1]
        assert (told.state is TrialState.PRUNED, len(told.intermediate_values)) == (why is not None, len(made))
