"""The sampler in a user's own study, in any storage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import optuna
import pytest
import torch
import yaml
from optuna_user_study import ROOT, manifest, measured_study, truth

from memtune.plans.plan import Plan
from memtune_operator.search.optuna_pruner import MemTunePruner
from memtune_operator.search.optuna_sampler import MemTuneSampler
from memtune_operator.search.study import FITS


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
        ValueError, match=r"No plan fits: .* needs 19\.\d GiB, the GPU has 4\.0 GiB\. What would help: "
    ):
        sampler.plan(study.ask())


@pytest.mark.parametrize(("memory", "fits"), [("80Gi", True), ("4Gi", False)])
def test_an_only_plan_is_tried_if_it_may_fit(memory: str, fits: bool) -> None:
    job = manifest()
    job["spec"]["training"]["globalBatchSize"] = 8
    job["spec"]["resources"]["gpuMemory"] = memory
    job["spec"]["tuning"]["space"] |= {"checkpointing": ["full"], "zeroStages": [3], "backends": ["deepspeed"]}
    sampler = MemTuneSampler.for_job(job)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    (only,) = sampler.state([]).knowledge.plans
    if fits:
        assert sampler.plan(study.ask()) == only
        return
    with pytest.raises(ValueError, match=f"No plan fits: {only} needs"):
        sampler.plan(study.ask())


def test_no_plan_that_ran_out_of_memory_is_tried_twice() -> None:
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
    for _ in range(len(sampler.state([]).choice.candidates)):
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


def test_optuna_s_hyperband_may_prune_the_study() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=optuna.pruners.HyperbandPruner())
    first = study.ask()
    plan = sampler.plan(first)
    study.tell(first, 1.0)
    assert sampler.plan(study.ask()) in sampler.state([]).knowledge.plans
    assert study.user_attrs["asks"]["sequence length"] == 4096
    assert first.user_attrs["plan"] == str(plan)


def test_other_headroom_goes_on_with_the_study() -> None:
    study = measured_study(MemTuneSampler.for_job(manifest()), trials=1)
    job = manifest()
    job["spec"]["tuning"]["headroom"] = "10%"
    sampler = study.sampler = MemTuneSampler.for_job(job)
    assert str(sampler.plan(study.ask())) != study.trials[0].user_attrs["plan"]


def test_a_trial_is_closed_while_the_space_lacks_its_plan() -> None:
    def sampler_with(**space: Any) -> MemTuneSampler:
        job = manifest()
        job["spec"]["tuning"]["space"] |= {"precision": ["bf16"], "checkpointing": ["none", "selective"], **space}
        return MemTuneSampler.for_job(job)

    before = sampler_with(offload=["none"])
    study = optuna.create_study(direction="maximize", sampler=before)
    trial = study.ask()
    plan = before.plan(trial)
    study.tell(trial, before.measured(trial, 1e6, 40 * 2**30))
    for space, is_closed in (({"offload": ["optimizer"]}, True), ({"offload": ["none"]}, False)):
        (read,) = sampler_with(**space).state(study.trials).trials
        assert (read.plan, read.closed) == (plan, is_closed)
    state = before.state(study.trials)
    assert plan not in {candidate.plan for candidate in state.choice.candidates}


def test_foreign_constraints_say_nothing_about_memory() -> None:
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


def test_the_sampler_works_in_any_study() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = measured_study(sampler, trials=50)
    plans = [trial.user_attrs["plan"] for trial in study.trials]
    # It ends by itself and repeats no plan.
    assert 1 < len(plans) == len(set(plans)) < 12
    assert all("learning_rate" in trial.params for trial in study.trials)
    limit = sampler.state([]).knowledge.usable_bytes * 0.94
    truths = [truth(sampler, plan) for plan in sampler.state([]).knowledge.plans]
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


def test_measurements_of_the_study_correct_the_prediction() -> None:
    sampler = MemTuneSampler.for_job(manifest())
    study = measured_study(sampler, trials=1)
    state = sampler.state(study.trials)
    (lesson,) = state.knowledge.lessons
    assert state.knowledge.predict(lesson.plan) != MemTuneSampler.for_job(manifest()).state([]).knowledge.predict(
        lesson.plan
    )


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


def test_optuna_prunes_nothing_with_two_objectives() -> None:
    job = manifest()
    job["spec"]["tuning"]["objectives"] = ["throughput", "memory"]
    sampler = MemTuneSampler.for_job(job)
    study = optuna.create_study(directions=["maximize"] * 2, sampler=sampler, pruner=MemTunePruner.for_job(job))
    trial = study.ask()
    sampler.plan(trial)
    sampler.stepped(trial, 1, 1000.0, 40 * 2**30)
    with pytest.raises(NotImplementedError, match="multi-objective"):
        trial.should_prune()
