"""`status`, `report` and `logs` of a `memtune run` job, read from its state directory."""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_jobs import refusal_message, write_job
from job_with_history import NAME, ended_well, job_with_history, still_probing
from tiny_rehearsal import tiny_rehearsal

from memtune.controller import Observed
from memtune.wire.report import Ending, Report
from memtune_cli.commands.run import _Screen
from memtune_cli.input.local_job import with_local_path
from memtune_cli.main import main
from memtune_operator.backend import Snapshot

Captured = pytest.CaptureFixture[str]
CLUSTERS_OWN = re.compile(r"\b(pods?|kube\w+|cluster|namespaces?|operator|research|spec\.suspend)\b", re.IGNORECASE)


def kept(directory: Path, job: dict[str, Any]) -> str:
    """Return the state directory of a job whose checkpoints are on a volume."""
    job["spec"]["checkpoint"] |= {"volume": {"persistentVolumeClaim": {"claimName": "own"}}}
    directory.mkdir(exist_ok=True)
    (directory / "job.json").write_text(json.dumps(job))
    return str(directory)


@pytest.fixture
def state(tmp_path: Path) -> str:
    """The state of the told job, whose first attempt ran out of memory."""
    directory = tmp_path / "state"
    run = directory / "runs" / f"{NAME}-train-1"
    run.mkdir(parents=True)
    (run / "log").write_text("[rank 4] fine\n[rank 5] too much\nwhat the launcher says\n")
    (run / "process.json").write_text(json.dumps({"pid": 0, "born": "never", "at": 1.0}))
    (run / "ended.json").write_text(json.dumps({"code": 85, "at": 2.0}))
    died = Report(Ending.DEVICE_OOM, 85, rank=5, message="no more memory")
    (run / "message").write_text(json.dumps(died.to_json()))
    return kept(directory, job_with_history())


def test_status_is_a_page_or_a_document(state: str, capsys: Captured) -> None:
    assert main(["status", "--state", state]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"{NAME}  Running\n")
    assert f"102,400 samples in {state}/checkpoints" in re.sub(r"\s+", " ", page).replace("- ", "-")
    assert "nothing until `memtune run` is called again" in page
    assert main(["status", "--state", state, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["status"]["phase"]) == ("status", "Running")


def test_the_next_step_is_shown_while_a_process_works_on_the_job(state: str, capsys: Captured) -> None:
    with (Path(state) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["status", "--state", state]) == 0
    assert "Next  it trains to its end" in capsys.readouterr().out


@pytest.mark.parametrize(
    "job",
    [
        job_with_history(),
        still_probing(),
        ended_well(),
        *(job_with_history(phase=phase) for phase in ("Pending", "Suspended", "Failed")),
    ],
)
def test_its_pages_name_nothing_that_only_a_cluster_has(job: dict[str, Any], tmp_path: Path, capsys: Captured) -> None:
    state, file = kept(tmp_path, job), tmp_path / "page.html"
    assert main(["status", "--state", state]) == 0
    assert main(["report", "--state", state, "-o", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"{file}: the report of {NAME}\n")
    assert CLUSTERS_OWN.findall(said + file.read_text()) == []


def test_the_failing_rank_comes_first(state: str, capsys: Captured) -> None:
    assert main(["logs", "--state", state]) == 0
    assert capsys.readouterr().out == (
        f"==> rank 5 of {NAME}-train-1: device-oom: no more memory <==\n[rank 5] too much\n"
        f"==> the others of {NAME}-train-1 <==\n[rank 4] fine\nwhat the launcher says\n"
    )
    assert main(["logs", "--state", state, "--follow", "--rank", "4"]) == 0
    assert capsys.readouterr().out == "[rank 4] fine\n"
    assert f"the log of {NAME}-probe-2 is gone" in refusal_message(capsys, "logs", "--state", state, "--run", "probe-2")


def test_a_run_that_goes_on_is_followed(state: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtune_operator.local.runs._LOOK_AGAIN_SECONDS", 0.0)
    directory = Path(state) / "runs" / f"{NAME}-train-2"
    directory.mkdir()
    looks = iter(["[rank 0] step", " 1\n[rank 0] st", "ep 2"])

    def goes_on(_: object) -> bool:
        with (directory / "log").open("a") as log:
            log.write(said := next(looks, ""))
        return bool(said)

    (directory / "log").touch()
    monkeypatch.setattr("memtune_operator.local.runs.LocalRun._goes_on", goes_on)
    assert main(["logs", "--state", state, "--follow"]) == 0
    assert capsys.readouterr().out == "[rank 0] step 1\n[rank 0] step 2\n"


@pytest.mark.parametrize("command", ["status", "report", "logs"])
def test_a_job_is_either_local_or_on_a_cluster(command: str, state: str, tmp_path: Path, capsys: Captured) -> None:
    assert "give the NAME of a job on a cluster, or --state DIR" in refusal_message(capsys, command)
    assert "NAME is for one on a cluster" in refusal_message(capsys, command, NAME, "--state", state)
    assert "-n and --context are for" in refusal_message(capsys, command, "-n", "a", "--context", "b", "--state", state)
    empty = tmp_path / "empty"
    assert f"--state: {empty} holds no job of memtune run" in refusal_message(capsys, command, "--state", str(empty))


@pytest.mark.parametrize("command", ["status", "report", "logs", "watch"])
def test_a_local_job_named_like_one_on_a_cluster_is_explained(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "KUBECONFIG"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    Path(".memtune").mkdir()
    kept(Path(".memtune") / NAME, job_with_history())
    for name in (NAME, f".memtune/{NAME}"):
        assert f"--state .memtune/{NAME}" in refusal_message(capsys, command, name)
    assert "--state" not in refusal_message(capsys, command, "another")


def test_unserved_metrics_are_not_requested(state: str, capsys: Captured) -> None:
    assert "--prometheus is for one on a cluster" in refusal_message(
        capsys, "report", "--state", state, "--prometheus", "x"
    )


def test_a_call_after_the_end_says_that_nothing_runs(tmp_path: Path, capsys: Captured) -> None:
    job = tiny_rehearsal(4)
    file, state = write_job(tmp_path, job), tmp_path / "state"
    state.mkdir()
    ended = {**job, "metadata": {**job["metadata"], "uid": "u", "generation": 1}, "status": ended_well()["status"]}
    ended["spec"] = {**job["spec"], "runner": {"python": "/some/python"}}
    (state / "job.json").write_text(json.dumps(ended))
    assert main(["run", file, "--state", str(state)]) == 0
    said = capsys.readouterr().out
    assert f"an earlier call, and nothing is run now; to start over, give another --state, or remove {state}" in said


def test_a_price_that_is_given_after_the_end_is_shown_with_the_result(tmp_path: Path, capsys: Captured) -> None:
    job, state = tiny_rehearsal(4), tmp_path / "state"
    job["spec"]["resources"] = {"gpusPerNode": 1, "gpuProduct": "NVIDIA-L4"}
    state.mkdir()
    accepted = {**job["metadata"], "uid": "u", "generation": 1}
    (state / "job.json").write_text(json.dumps({**job, "metadata": accepted, "status": ended_well()["status"]}))
    job["spec"]["resources"]["gpuHourPrice"] = 0.5
    assert main(["run", write_job(tmp_path, job), "--state", str(state)]) == 0
    assert "nothing is run now" in capsys.readouterr().out
    assert json.loads((state / "job.json").read_text())["status"]["gpuHourPrice"] == 0.5


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_result_of_another_job_is_not_given_for_that_of_an_edited_one(
    phase: str, tmp_path: Path, capsys: Captured
) -> None:
    job, state = tiny_rehearsal(4), tmp_path / "state"
    state.mkdir()
    accepted = {**job["metadata"], "uid": "u", "generation": 1}
    before = {**job, "metadata": accepted, "status": {"phase": phase, "message": "there is no script looop.py"}}
    (state / "job.json").write_text(json.dumps(before))
    job["spec"] = {**job["spec"], "training": {**job["spec"]["training"], "globalBatchSize": 8}}
    said = refusal_message(capsys, "run", write_job(tmp_path, job), "--state", str(state))
    assert f"{phase}: there is no script looop.py" in said
    what_to_do = f"to start over, give another --state, or remove {state}"
    assert f"memtune: nothing was run, because the job was edited after it had ended; {what_to_do}. The earlier" in said
    assert json.loads((state / "job.json").read_text()) == before


@pytest.mark.parametrize(
    "text", ["torn", "[]", '{"spec": 3, "metadata": {"name": "x"}}', '{"spec": {}, "metadata": {}}']
)
def test_a_state_that_was_edited_by_hand_is_refused_and_kept(text: str, tmp_path: Path, capsys: Captured) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "job.json").write_text(text)
    for words in (["run", write_job(tmp_path, tiny_rehearsal(4))], ["status"]):
        said = refusal_message(capsys, *words, "--state", str(state))
        assert f"{state}/job.json is not as memtune run left it; restore it, or remove {state} to start over" in said
    assert (state / "job.json").read_text() == text


def test_interrupting_a_training_shows_its_checkpoint(tmp_path: Path, capsys: Captured) -> None:
    kept(tmp_path, job := job_with_history(phase="Suspended"))

    async def interrupt() -> int:
        screen = _Screen(tmp_path)
        screen.interrupted()
        heard = {**job, "spec": {**job["spec"], "suspend": True}}
        snapshot = Snapshot(heard, Observed(status=job["status"]))
        screen.reconciled(snapshot, snapshot, 0.0)
        return await asyncio.wait_for(screen.ended, 10)

    assert asyncio.run(interrupt()) == 130
    assert with_local_path(job, tmp_path).checkpoint.startswith(f"102,400 samples in {tmp_path}/checkpoints")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"checkpoint: 102,400 samples in {tmp_path}/checkpoints, saved by attempt 1, as deepspeed",
        f"logs and state: {tmp_path}; `memtune report --state {tmp_path}` writes its page",
    ]
