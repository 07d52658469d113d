"""PodGroups and JobSets, against the real CRDs of their projects.

No controller of theirs runs here: where one would act, the test does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from foreign_kinds import GANG_CRDS, installed
from helm_release import NAMESPACED, Release
from kubernetes import client
from operator_process import Jobs
from pods import Cluster, eventually
from raw_api import RawApi
from waiting_job import WaitingJob

GANGS = {**NAMESPACED, "gangs": ["volcano", "coscheduling", "jobset"]}
pytestmark = pytest.mark.xdist_group("kinds")
RUN = "steady-train-1"
INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(autouse=True, scope="module")
def _kinds(cluster: Cluster) -> Iterator[None]:
    with installed(cluster, *GANG_CRDS):
        yield


@pytest.fixture
def steady(cluster: Cluster, jobs: Jobs, namespace: str) -> WaitingJob:
    return WaitingJob(cluster, jobs, namespace)


class Objects:
    """Those of one kind in a namespace."""

    def __init__(self, cluster: Cluster, version: str, plural: str, namespace: str) -> None:
        self._api = RawApi(cluster.connection)
        self._path = f"/apis/{version}/namespaces/{namespace}/{plural}"

    def all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api.get(self._path)["items"]
        return found

    def one(self) -> dict[str, Any]:
        (found,) = eventually(self.all, f"one in {self._path}")
        return found


@pytest.mark.parametrize(
    ("scheduler", "version"),
    [
        ("volcano", "scheduling.volcano.sh/v1beta1"),
        pytest.param("scheduler-plugins-scheduler", "scheduling.x-k8s.io/v1alpha1", marks=pytest.mark.slow),
    ],
)
def test_a_pod_group_is_created_and_deleted_with_its_run(
    cluster: Cluster, namespace: str, release: Release, jobs: Jobs, steady: WaitingJob, scheduler: str, version: str
) -> None:
    release.install(GANGS)
    steady.apply(schedulerName=scheduler)
    groups = Objects(cluster, version, "podgroups", namespace)
    group = groups.one()
    assert (group["metadata"]["name"], group["spec"]["minMember"]) == (RUN, 1)
    assert group["spec"]["minResources"] == {"nvidia.com/gpu": "1"}
    pod = eventually(lambda: pods_of_run(cluster, namespace), "the run's pod")[0].metadata
    named = {**pod.labels, **pod.annotations}
    assert RUN in {named.get("scheduling.k8s.io/group-name"), named.get("scheduling.x-k8s.io/pod-group")}
    jobs.patch(steady.name, suspend=True)
    eventually(lambda: not groups.all(), "the group of a run that was stopped to go")
    jobs.patch(steady.name, suspend=False)
    assert groups.one()["metadata"]["name"] == "steady-train-2"
    jobs.delete(steady.name)
    eventually(lambda: not groups.all(), "the group to go with its job")
    assert 'code="403"' not in release.metrics(), "it asked for what its role does not allow"


def test_a_run_owns_the_pods_of_its_job_set(
    cluster: Cluster, namespace: str, release: Release, jobs: Jobs, steady: WaitingJob
) -> None:
    release.install(GANGS)
    steady.apply(launcher="JobSet")
    job_sets = Objects(cluster, "jobset.x-k8s.io/v1alpha2", "jobsets", namespace)
    job_set = job_sets.one()
    assert pods_of_run(cluster, namespace) == []
    pod = play_the_controllers(cluster, namespace, job_set)
    jobs.wait_for(steady.name, "Running")
    code, _ = cluster.execute(namespace, pod, ["touch", "/tmp/end"])
    assert code == 0
    status = jobs.wait_for(steady.name, "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    assert cluster.read(namespace, pod).status.phase == "Succeeded", "its pod stays for its log"
    jobs.delete(steady.name)
    eventually(lambda: cluster.gone(namespace, pod) and not job_sets.all(), "everything to go with the job")
    assert 'code="403"' not in release.metrics(), "it asked for what its role does not allow"


@pytest.mark.slow
def test_a_job_waits_while_its_queue_suspends_the_job_set(
    cluster: Cluster, namespace: str, release: Release, jobs: Jobs, steady: WaitingJob
) -> None:
    release.install(GANGS)
    steady.apply(launcher="JobSet")
    job_set = Objects(cluster, "jobset.x-k8s.io/v1alpha2", "jobsets", namespace).one()
    api: Any = client.CustomObjectsApi(cluster.connection)
    where = ("jobset.x-k8s.io", "v1alpha2", namespace, "jobsets", job_set["metadata"]["name"])
    api.patch_namespaced_custom_object(*where, {"spec": {"suspend": True}})
    queued = eventually(lambda: jobs.condition(steady.name, "Queued"), "the job to be queued")
    assert queued["status"] == "True"
    assert f"JobSet {RUN} is suspended by its queue" in queued["message"]


@pytest.mark.slow
def test_a_gang_scheduler_that_is_not_installed_stalls_the_job(
    cluster: Cluster, namespace: str, release: Release, jobs: Jobs, steady: WaitingJob
) -> None:
    release.install(NAMESPACED)
    steady.apply(launcher="JobSet")
    stalled = eventually(lambda: jobs.condition(steady.name, "Stalled"), "the job to be stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "GangNotInstalled")
    assert pods_of_run(cluster, namespace) == []


def pods_of_run(cluster: Cluster, namespace: str) -> list[Any]:
    found: list[Any] = cluster.core.list_namespaced_pod(namespace, label_selector=f"memtune.dev/run={RUN}").items
    return found


def play_the_controllers(cluster: Cluster, namespace: str, job_set: dict[str, Any]) -> str:
    """What the controller of JobSets does: its Job. This server's own makes the pod of it, but knows no index yet."""
    (replicated,) = job_set["spec"]["replicatedJobs"]
    template = replicated["template"]
    name = f"{job_set['metadata']['name']}-{replicated['name']}-0"
    pod = template["spec"]["template"]
    numbered = {
        "metadata": {**pod["metadata"], "annotations": {**pod["metadata"]["annotations"], INDEX: "0"}},
        "spec": {**pod["spec"], "hostname": f"{name}-0"},
    }
    owner = {"apiVersion": job_set["apiVersion"], "kind": job_set["kind"], "controller": True}
    owner |= {part: job_set["metadata"][part] for part in ("name", "uid")}
    metadata = {**template["metadata"], "name": name, "ownerReferences": [owner]}
    api: Any = client.BatchV1Api(cluster.connection)
    api.create_namespaced_job(namespace, {"metadata": metadata, "spec": {**template["spec"], "template": numbered}})
    made = eventually(lambda: pods_of_run(cluster, namespace), "the pod of the Job")
    return str(made[0].metadata.name)
