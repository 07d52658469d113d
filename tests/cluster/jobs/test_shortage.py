"""More is asked for than there is: of a quota, of GPUs, of the operator's attention."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from operator_process import Jobs, OperatorProcess, runs
from pods import GPU, Cluster, container, eventually, pod
from reporter import Act
from reporter_jobs import FIXED, command, let_go, pod_template, reporter_job

FOREIGN_PODS = 2000
JOBS = 30


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_an_exceeded_quota_stalls_the_job_until_it_is_raised(cluster: Cluster, namespace: str, jobs: Jobs) -> None:
    def quota(gpus: int) -> dict[str, object]:
        return {"metadata": {"name": "gpus"}, "spec": {"hard": {f"requests.{GPU}": str(gpus)}}}

    cluster.core.create_namespaced_resource_quota(namespace, quota(0))
    jobs.apply(reporter_job("poor", tuning=FIXED))
    stalled = eventually(lambda: jobs.condition("poor", "Stalled"), "the job to be stalled", 30)
    assert (stalled["status"], stalled["reason"]) == ("True", "Refused")
    assert "exceeded quota: gpus" in stalled["message"]
    assert cluster.core.list_namespaced_pod(namespace).items == []
    cluster.core.replace_namespaced_resource_quota("gpus", namespace, quota(1))
    status = jobs.wait_for("poor", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    assert (len(status["attempts"]), status["oomRetries"], status["disruptions"]) == (1, 0, 0)
    assert jobs.condition("poor", "Stalled")["status"] == "False"


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_thirty_jobs_share_the_eight_gpus_of_a_node_and_all_succeed(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    node, gpus = max(cluster.gpus_by_node().items(), key=lambda each: each[1])
    template = pod_template(command(), nodeSelector={"kubernetes.io/hostname": node})
    for number in range(JOBS):
        job = reporter_job(f"crowd-{number}", template=template)
        # Each third one gives its GPU back between its probe and its attempt.
        if number % 3:
            job["spec"]["tuning"] = FIXED
        jobs.apply(job)
    most = 0

    def phases() -> set[str]:
        nonlocal most
        pods = cluster.core.list_namespaced_pod(namespace).items
        placed = [each for each in pods if each.spec.node_name and each.status.phase in ("Pending", "Running")]
        most = max(most, len(placed))
        return {status.get("phase", "Pending") for status in jobs.statuses().values()}

    eventually(lambda: phases() <= {"Succeeded", "Failed"}, "all jobs to end", 300)
    assert 1 < most <= gpus, "each pod has one"
    stories = jobs.statuses()
    assert len(stories) == JOBS
    for name, status in stories.items():
        ended = {(run["number"], run["verdict"]) for run in runs(status)}
        assert (status["phase"], ended) == ("Succeeded", {(1, "succeeded")}), name


def asks_for_nothing(operator: OperatorProcess) -> bool:
    """Whether the operator reads nothing from the API server for three seconds."""
    before = operator.requests("GET")
    time.sleep(3)
    return operator.requests("GET") == before


@pytest.mark.slow
def test_the_operator_ignores_thousands_of_foreign_pods(
    cluster: Cluster, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    jobs.apply(reporter_job("alone", train=(Act(waits=True),), tuning=FIXED))
    jobs.wait_for("alone", "Running")
    # What its own pod still goes through, such as to be ready, wakes the operator as well.
    eventually(lambda: asks_for_nothing(operator), "the operator to rest", 60)
    # No scheduler takes them, so they are in nobody's way but the operator's.
    foreign = [pod(f"foreign-{number}", container("pass"), schedulerName="nobody") for number in range(FOREIGN_PODS)]
    memory, cpu, lists, began = operator.resident_bytes(), operator.cpu_seconds(), operator.requests("GET"), time.time()
    with ThreadPoolExecutor(4) as workers:
        for created in workers.map(lambda body: cluster.create(namespace, body), foreign):
            assert created
    passed = time.time() - began
    # Told of each of them, the operator would take tens of MB and more than a second.
    assert operator.resident_bytes() - memory < 4 * 2**20
    assert operator.cpu_seconds() - cpu < 0.2 + 0.01 * passed
    # Of the nodes it asks every 15 s.
    assert operator.requests("GET") - lists <= 1 + passed / 15
    let_go(cluster, namespace, "alone-train-1-0")
    jobs.wait_for("alone", "Succeeded")
