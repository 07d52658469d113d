"""The operator on a real cluster: from a job that is applied to one that has succeeded, killed wherever it hurts."""

from __future__ import annotations

from pathlib import Path

import pytest
from operator_process import Jobs, OperatorProcess
from pods import Cluster, eventually
from rehearsals import quickstart


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_the_quickstart_is_predicted_probed_launched_and_succeeds(jobs: Jobs, tmp_path: Path) -> None:
    jobs.apply(quickstart(tmp_path / "checkpoints"))
    status = jobs.wait_for("quickstart", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    assert 1 <= len(status["probes"]) <= 6
    assert status["prediction"]["deviceBytes"]["lower"] > 0
    winner = status["plan"]["name"]
    assert winner in {probe["plan"] for probe in status["probes"] if probe["verdict"] == "succeeded"}
    assert [attempt["plan"] for attempt in status["attempts"]] == [winner]
    assert jobs.condition("quickstart", "Complete")["status"] == "True"


@pytest.mark.slow
def test_a_killed_operator_resumes_the_job(
    cluster: Cluster, namespace: str, jobs: Jobs, operator: OperatorProcess, tmp_path: Path
) -> None:
    jobs.apply(quickstart(tmp_path / "checkpoints"))
    for phase in ("Probing", "Running"):
        jobs.wait_for("quickstart", phase)
        operator.kill()
        operator.start()
    status = jobs.wait_for("quickstart", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    assert [probe["number"] for probe in status["probes"]] == list(range(1, len(status["probes"]) + 1))
    assert len({probe["plan"] for probe in status["probes"]}) == len(status["probes"]), "no plan is probed twice"
    assert [attempt["number"] for attempt in status["attempts"]] == [1], "no attempt was lost or doubled"
    jobs.delete("quickstart")
    eventually(lambda: not cluster.core.list_namespaced_pod(namespace).items, "every pod to go with its job")


@pytest.mark.usefixtures("operator")
def test_an_impossible_job_sets_a_condition_and_starts_no_pod(
    cluster: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    silent = {"name": "trainer", "image": "mine:1"}
    jobs.apply(quickstart(tmp_path / "checkpoints", template={"spec": {"containers": [silent]}}))
    stalled = eventually(lambda: jobs.condition("quickstart", "Stalled"), "the job to be stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "CommandRequired")
    assert "sets no command" in stalled["message"]
    assert cluster.core.list_namespaced_pod(namespace).items == []


@pytest.mark.usefixtures("operator")
def test_a_missing_image_is_reported_within_30_seconds_without_a_retry(jobs: Jobs, tmp_path: Path) -> None:
    absent = {
        "spec": {"containers": [{"name": "trainer", "image": "localhost/absent:1", "command": ["python3", "x.py"]}]}
    }
    jobs.apply(quickstart(tmp_path / "checkpoints", template=absent))
    stalled = eventually(lambda: jobs.condition("quickstart", "Stalled"), "the job to be stalled", 40)
    assert stalled["reason"] == "ImagePull"
    status = jobs.status("quickstart")
    assert (status.get("oomRetries", 0), status.get("disruptions", 0)) == (0, 0)
