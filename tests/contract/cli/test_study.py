"""`memtune study`: a job's probes as a study that Optuna's tools can open."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import optuna
import optuna_dashboard  # type: ignore[import-untyped]  # it has none
import pytest
from cli_jobs import refusal_message
from fake_api_server import JOB, ApiServer, found
from job_with_history import NAME, TOTAL_BYTES, job_with_history, still_probing, two_objectives
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from memtune_cli.main import main

Flags = tuple[str, str]
Captured = pytest.CaptureFixture[str]
STUDY = f"research/{NAME}"


def state_of(directory: Path, job: dict[str, Any]) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "job.json").write_text(json.dumps(job))
    return str(directory)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


@pytest.fixture
def study(flags: Flags, url: str, capsys: Captured) -> optuna.Study:
    assert main(["study", NAME, *flags, "--storage", url]) == 0
    assert capsys.readouterr().out == f"{url}: study {STUDY} has 3 trials, 3 of them new\n"
    return optuna.load_study(study_name=STUDY, storage=url)


def test_each_probe_is_a_trial_with_prediction_and_measurement(study: optuna.Study) -> None:
    assert [trial.params for trial in study.trials] == [
        {"sharding": "z2", "checkpointing": "none", "micro_batch": 1},
        {"sharding": "z1", "checkpointing": "none", "micro_batch": 1},
        {"sharding": "z2", "checkpointing": "none", "micro_batch": 2},
    ]
    assert [trial.value for trial in study.trials] == [33_101, 34_012, 0]
    assert all(trial.state is TrialState.COMPLETE for trial in study.trials)
    first, second, last = study.trials
    assert study.best_trial.number == second.number
    assert first.user_attrs["plan"] == "bf16-z2-none-mb1x32"
    assert first.user_attrs["predicted_bytes"] == int(55.8 * 2**30)
    assert first.user_attrs["device_bytes"] == int(57.0 * 2**30)
    assert (first.user_attrs["run"], first.user_attrs["pods"]) == (f"{NAME}-probe-1", [f"{NAME}-probe-1-0"])
    assert (last.user_attrs["verdict"], last.user_attrs["died"]) == ("device-oom", True)
    assert last.constraints == {"fits": pytest.approx(82.0 * 2**30 / TOTAL_BYTES - 0.94, abs=1e-6)}
    assert second.constraints == {"fits": pytest.approx(69.4 * 2**30 / TOTAL_BYTES - 0.94, abs=1e-6)}
    assert first.duration is not None
    assert first.duration.total_seconds() == 90
    assert study.metric_names == ["tokens per second"]
    assert study.user_attrs == {
        "job": STUDY,
        "job_uid": "0b5e",
        "device": "cuda",
        "gpu": "NVIDIA-A100-SXM4-80GB",
        "gpus": 8,
        "usable_bytes": TOTAL_BYTES,
        "headroom": 0.06,
        "plan": "bf16-z2-none-mb1x32",
    }


def test_emulated_trials_are_marked(tmp_path: Path, url: str) -> None:
    job = job_with_history()
    job["spec"]["resources"]["device"] = "emulated"
    for record in (*job["status"]["probes"], *job["status"]["attempts"]):
        record["emulated"] = True
    assert main(["study", "--state", state_of(tmp_path / "state", job), "--storage", url]) == 0
    (found,) = optuna.get_all_study_summaries(url)
    assert found.user_attrs["device"] == "emulated"
    trials = optuna.load_study(study_name=found.study_name, storage=url).trials
    assert all(trial.user_attrs["emulated"] for trial in trials)


def ended_early() -> dict[str, Any]:
    """Return the same job with a first probe on the faster plan, so that the second one ended early."""
    job = job_with_history()
    first, second = job["status"]["probes"][:2]
    second["pruned"] = "speed"
    told = ((first, 2, 31.7), (first, 3, 31.7), (second, 2, 30.0))
    job["status"]["measuredSteps"] = [
        {"probe": probe["number"], "step": step, "seconds": seconds, "deviceBytes": probe["peakBytes"]["device"]}
        for probe, step, seconds in told
    ]
    return job


def test_a_probe_that_ended_early_is_a_pruned_trial_with_its_steps(tmp_path: Path, url: str) -> None:
    assert main(["study", "--state", state_of(tmp_path / "state", ended_early()), "--storage", url]) == 0
    study = optuna.load_study(study_name=NAME, storage=url)
    first, second, last = study.trials
    assert [trial.state.name for trial in (first, second, last)] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert first.intermediate_values == {2: pytest.approx(33_101), 3: pytest.approx(33_101)}
    speed = 34_012 * second.user_attrs["step_seconds"] / 30.0
    assert second.intermediate_values == {2: pytest.approx(speed)}
    assert second.user_attrs["pruned"] == "speed"
    (told,) = second.user_attrs["steps"]
    assert (told["step"], told["seconds"], told["device_bytes"]) == (2, 30.0, second.user_attrs["device_bytes"])
    assert study.best_trial.number == first.number
    assert optuna.visualization.plot_intermediate_values(study).data


def test_optuna_s_pictures_are_drawn_of_it(study: optuna.Study) -> None:
    for draw in (
        optuna.visualization.plot_optimization_history,
        optuna.visualization.plot_parallel_coordinate,
        optuna.visualization.plot_slice,
        optuna.visualization.plot_timeline,
        optuna.visualization.plot_contour,
        optuna.visualization.plot_rank,
        optuna.visualization.plot_edf,
    ):
        assert draw(study).data


@pytest.mark.usefixtures("study")
def test_optuna_s_dashboard_opens_it(url: str) -> None:
    dashboard = optuna_dashboard.wsgi(url)

    def asked(path: str) -> dict[str, Any]:
        said: list[str] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "wsgi.input": io.BytesIO(), "wsgi.errors": io.StringIO()}
        body = b"".join(dashboard(environ, lambda *answer: said.append(answer[0])))
        assert said == ["200 OK"]
        answer: dict[str, Any] = json.loads(body)
        return answer

    (summary,) = asked("/api/studies")["study_summaries"]
    assert summary["study_name"] == STUDY
    detail = asked(f"/api/studies/{summary['study_id']}")
    assert [trial["state"] for trial in detail["trials"]] == ["Complete"] * 3
    attributes = {each["key"]: each["value"] for each in detail["trials"][2]["user_attrs"]}
    assert "device-oom" in attributes["verdict"]


def test_a_journal_file_holds_the_same(study: optuna.Study, tmp_path: Path, flags: Flags) -> None:
    path = str(tmp_path / "study.log")
    assert main(["study", NAME, *flags, "--storage", path, "--study", "other"]) == 0
    same = optuna.load_study(study_name="other", storage=JournalStorage(JournalFileBackend(path)))
    told = [(trial.params, trial.values, trial.user_attrs, trial.constraints) for trial in same.trials]
    assert told == [(trial.params, trial.values, trial.user_attrs, trial.constraints) for trial in study.trials]


def test_a_second_call_adds_only_newly_ended_probes(
    server: ApiServer, flags: Flags, url: str, capsys: Captured
) -> None:
    server.answer(JOB, found(still_probing()))
    assert main(["study", NAME, *flags, "--storage", url]) == 0
    study = optuna.load_study(study_name=STUDY, storage=url)
    study.set_user_attr("note", "a person's")
    server.answer(JOB, found(job_with_history()))
    assert main(["study", NAME, *flags, "--storage", url]) == 0
    assert main(["study", NAME, *flags, "--storage", url]) == 0
    assert re.findall(r"has (.*)", capsys.readouterr().out) == [
        "2 trials, 2 of them new",
        "3 trials, 1 of them new",
        "3 trials, 0 of them new",
    ]
    study = optuna.load_study(study_name=STUDY, storage=url)
    assert len(study.trials) == 3
    assert study.user_attrs["note"] == "a person's"


def test_a_job_of_this_machine_has_no_pods(tmp_path: Path, url: str) -> None:
    assert main(["study", "--state", state_of(tmp_path / "state", job_with_history()), "--storage", url]) == 0
    study = optuna.load_study(study_name=NAME, storage=url)
    assert all("pods" not in trial.user_attrs for trial in study.trials)


def test_gpus_that_lost_memory_later_change_no_probe(tmp_path: Path, url: str) -> None:
    job = job_with_history()
    peaks = job["status"]["attempts"][0]["peakBytes"]
    job["status"]["attempts"][0]["peakBytes"] = dict.fromkeys(peaks, 40 * 2**30)
    assert main(["study", "--state", state_of(tmp_path / "state", job), "--storage", url]) == 0
    study = optuna.load_study(study_name=NAME, storage=url)
    assert [max(trial.constraints.values()) <= 0 for trial in study.trials] == [True, True, False]


def test_a_job_whose_model_was_traced_on_the_cluster_has_a_study_too(tmp_path: Path, url: str) -> None:
    job = job_with_history(prediction=None)
    job["spec"]["model"] = {"factory": "train:build"}
    job["spec"]["template"] = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python"]}]}}
    assert main(["study", "--state", state_of(tmp_path / "state", job), "--storage", url]) == 0
    assert len(optuna.load_study(study_name=NAME, storage=url).trials) == 3


def test_a_study_of_another_job_is_left_alone(tmp_path: Path, url: str, capsys: Captured) -> None:
    optuna.create_study(study_name=NAME, storage=url)
    state = state_of(tmp_path / "state", job_with_history())
    said = refusal_message(capsys, "study", "--state", state, "--storage", url)
    assert f"its study {NAME} is not of this job; give another storage, or another --study" in said
    assert optuna.load_study(study_name=NAME, storage=url).trials == []
    assert main(["study", "--state", state, "--storage", url, "--study", "mine"]) == 0


def test_with_both_objectives_a_trial_has_two_values(tmp_path: Path, url: str, capsys: Captured) -> None:
    assert main(["study", "--state", state_of(tmp_path / "state", job_with_history()), "--storage", url]) == 0
    state = state_of(tmp_path / "state", two_objectives())
    capsys.readouterr()
    said = refusal_message(capsys, "study", "--state", state, "--storage", url)
    assert f"its study {NAME} was written for other tuning.objectives; give another --study" in said
    assert main(["study", "--state", state, "--storage", url, "--study", "both"]) == 0
    study = optuna.load_study(study_name="both", storage=url)
    assert study.metric_names == ["tokens per second", "free bytes"]
    assert {trial.user_attrs["plan"] for trial in study.best_trials} == {"bf16-z1-none-mb1x32", "bf16-z2-none-mb1x32"}
    assert optuna.visualization.plot_pareto_front(study).data


def test_a_space_that_was_edited_needs_another_study(tmp_path: Path, url: str, capsys: Captured) -> None:
    job = job_with_history()
    assert main(["study", "--state", state_of(tmp_path / "state", job), "--storage", url]) == 0
    job["spec"]["tuning"]["space"] = {"checkpointing": ["none", "full"]}
    capsys.readouterr()
    said = refusal_message(capsys, "study", "--state", state_of(tmp_path / "state", job), "--storage", url)
    assert "the parameter checkpointing has other choices than tuning.space now allows; give another --study" in said
    assert len(optuna.load_study(study_name=NAME, storage=url).trials) == 3


def test_a_space_changed_and_restored_adds_no_false_trial(tmp_path: Path, url: str) -> None:
    job = job_with_history()
    for precision in ("bf16", "fp16", "bf16"):
        job["spec"]["tuning"]["space"] = {**job["spec"]["tuning"].get("space", {}), "precision": [precision]}
        assert main(["study", "--state", state_of(tmp_path / "state", job), "--storage", url]) == 0
    assert all("closed" not in trial.user_attrs for trial in optuna.load_study(study_name=NAME, storage=url).trials)


def test_a_package_that_is_there_and_broken_is_not_called_missing(
    tmp_path: Path, url: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str) -> None:
        raise ImportError("cannot import name 'Row' from 'sqlalchemy'", name="sqlalchemy")

    monkeypatch.setattr("memtune_cli.commands.study._storage", broken)
    said = refusal_message(
        capsys, "study", "--state", state_of(tmp_path / "state", job_with_history()), "--storage", url
    )
    assert "cannot be loaded: cannot import name 'Row' from 'sqlalchemy'; give" in said


@pytest.mark.parametrize(
    ("storage", "why"),
    [
        ("sqlite:///{here}/none/study.db", "unable to open database file"),
        ("sqlite:///{here}/text", "file is not a database"),
        ("{here}/none/study.log", "No such file or directory"),
        ("{here}", "Is a directory"),
        ("{here}/text", "is no journal of Optuna's"),
        ("/dev/full", "/dev/full is no regular file"),
        ("sqlite://", "keeps nothing"),
        ("sqlite:///", "keeps nothing"),
        ("sqlite:///:memory:", "keeps nothing"),
        ("sqlite+pysqlite:///:memory:", "keeps nothing"),
        ("sqlite:///file:any?mode=memory&cache=shared&uri=true", "keeps nothing"),
        ("nothing://eve:secret@host/study", "Can't load plugin"),
        ("mysql://eve:secret@host/study", "needs a package that is not installed: MySQLdb; give a database like"),
    ],
)
def test_a_storage_that_cannot_be_written_is_one_sentence(
    storage: str, why: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "text").write_text("neither a database nor a journal\n")
    given = storage.format(here=tmp_path)
    said = refusal_message(
        capsys, "study", "--state", state_of(tmp_path / "state", job_with_history()), "--storage", given
    )
    assert why in said
    assert said.startswith("memtune: --storage: ")
    assert said.count("\n") == 1
    assert "secret" not in said
    assert (tmp_path / "text").read_text() == "neither a database nor a journal\n"


def test_a_spec_that_cannot_be_read_has_no_study(tmp_path: Path, url: str, capsys: Captured) -> None:
    job = job_with_history()
    job["spec"]["training"] = {}
    said = refusal_message(capsys, "study", "--state", state_of(tmp_path / "state", job), "--storage", url)
    assert said == f"memtune: the spec of {NAME} cannot be read; memtune status says why\n"
