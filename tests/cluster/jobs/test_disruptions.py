"""What a running job may meet: its pod, its node, its namespace or itself taken away."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client
from operator_process import Jobs, OperatorProcess
from pods import Cluster, eventually
from reporter import Act
from reporter_jobs import FIXED, reporter_job

from dev.cluster.binaries import command as built

# The first attempt goes on until it is taken away, the next one ends by itself.
INTERRUPTED = (Act(waits=True), Act())


def run_job(jobs: Jobs, name: str) -> None:
    """A job whose first attempt runs and does not end."""
    jobs.apply(reporter_job(name, train=INTERRUPTED, tuning=FIXED))
    jobs.wait_for(name, "Running")


def verdicts(jobs: Jobs, name: str) -> list[str | None]:
    """What became of each attempt of a job that has to succeed; None if the operator stopped it."""
    jobs.wait_for(name, "Succeeded")
    attempts = jobs.status(name)["attempts"]
    assert len({attempt["plan"] for attempt in attempts}) == 1, "no plan has failed, so none is given up"
    return [attempt.get("verdict") for attempt in attempts]


def budgets(jobs: Jobs, name: str) -> tuple[int, int]:
    status = jobs.status(name)
    return status.get("disruptions", 0), status.get("oomRetries", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_a_deleted_pod_is_replaced_under_the_same_plan(cluster: Cluster, namespace: str, jobs: Jobs) -> None:
    run_job(jobs, "deleted")
    cluster.core.delete_namespaced_pod("deleted-train-1-0", namespace)
    assert verdicts(jobs, "deleted") == ["disrupted", "succeeded"]
    assert budgets(jobs, "deleted") == (1, 0)


@pytest.fixture
def cordoned(cluster: Cluster) -> Iterator[set[str]]:
    """The nodes in it take pods again when the test is over."""
    names: set[str] = set()
    yield names
    for name in names:
        cluster.core.patch_node(name, {"spec": {"unschedulable": None}})


@pytest.mark.slow
@pytest.mark.xdist_group("nodes")
@pytest.mark.usefixtures("operator", "two_nodes")
def test_a_job_moves_to_another_node_after_a_drain(
    cluster: Cluster, namespace: str, jobs: Jobs, kubeconfig: str, cordoned: set[str], tmp_path: Path
) -> None:
    run_job(jobs, "drained")
    node = cluster.read(namespace, "drained-train-1-0").spec.node_name
    cordoned.add(node)
    kubectl = shutil.which("kubectl") or built("kubectl")
    own_cache = f"--cache-dir={tmp_path}"
    drain = [kubectl, f"--kubeconfig={kubeconfig}", own_cache, "drain", node, "--delete-emptydir-data", "--timeout=3m"]
    # Not what runs on this node for others.
    own = "memtune.dev/run=drained-train-1"
    subprocess.run([*drain, f"--pod-selector={own}"], check=True, capture_output=True, text=True, timeout=230)
    assert verdicts(jobs, "drained") == ["disrupted", "succeeded"]
    assert budgets(jobs, "drained") == (1, 0)
    assert cluster.read(namespace, "drained-train-2-0").spec.node_name != node


@pytest.mark.usefixtures("operator")
def test_a_suspended_job_releases_its_gpus_and_resumes(cluster: Cluster, namespace: str, jobs: Jobs) -> None:
    run_job(jobs, "paused")
    jobs.patch("paused", suspend=True)
    jobs.wait_for("paused", "Suspended")
    eventually(lambda: cluster.gone(namespace, "paused-train-1-0"), "the pod to go")
    assert jobs.condition("paused", "Suspended")["status"] == "True"
    jobs.patch("paused", suspend=False)
    assert verdicts(jobs, "paused") == [None, "succeeded"]
    assert budgets(jobs, "paused") == (0, 0)


def test_a_job_deleted_without_an_operator_leaves_nothing(
    cluster: Cluster, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    run_job(jobs, "orphaned")
    operator.stop()
    jobs.delete("orphaned")
    eventually(lambda: "orphaned" not in jobs.statuses(), "the job to go", 10)
    eventually(lambda: cluster.gone(namespace, "orphaned-train-1-0"), "its pod to go with it")
    eventually(lambda: not cluster.core.list_namespaced_service(namespace).items, "its Service to go with it")


@pytest.mark.parametrize(
    "is_away", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["operator-running", "operator-stopped"]
)
def test_a_namespace_with_a_running_job_can_be_deleted(
    cluster: Cluster, namespace: str, jobs: Jobs, operator: OperatorProcess, is_away: bool
) -> None:
    run_job(jobs, "doomed")
    if is_away:
        operator.stop()
    cluster.core.delete_namespace(namespace)

    def is_gone() -> bool:
        try:
            print(cluster.core.read_namespace(namespace).status)
        except client.ApiException as error:
            return bool(error.status == 404)
        return False

    # What it held goes at once; Kubernetes itself may look again only minutes later.
    eventually(is_gone, "the namespace to be gone", 300)
    assert jobs.statuses() == {}
    assert "Traceback" not in operator.log()
