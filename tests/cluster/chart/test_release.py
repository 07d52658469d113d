"""The chart, installed by Helm itself: its operator works, and jobs outlive whatever happens to the release."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest
from helm_chart import CHART
from helm_release import CRD, NAMESPACED, PREVIOUS_CHART, Release, version_of
from kubernetes import client
from operator_process import Jobs
from pods import Cluster, container, eventually, pod
from waiting_job import WaitingJob

# The same, with the CRD as part of the release.
WITH_CRD: dict[str, Any] = {**NAMESPACED, "crd": {"install": True}}
# What a process in the operator's container is told of itself by the kernel, and whether it can write beside /tmp.
CONFINED = """
import os
status = dict(line.split(":\\t", 1) for line in open("/proc/1/status"))
print(*(status[name].split()[0] for name in ("Uid", "CapEff", "NoNewPrivs", "Seccomp")), os.access("/app", os.W_OK))
"""


@pytest.fixture
def steady(cluster: Cluster, jobs: Jobs, namespace: str) -> WaitingJob:
    return WaitingJob(cluster, jobs, namespace)


def test_the_operator_is_confined_and_works_under_its_own_account(
    cluster: Cluster, namespace: str, release: Release, steady: WaitingJob
) -> None:
    release.install(NAMESPACED)
    operator = release.operator()
    assert operator.spec.service_account_name == release.name
    code, said = cluster.execute(namespace, operator.metadata.name, ["python3", "-c", CONFINED])
    # User, effective capabilities, no new privileges, the seccomp filter, and nothing to write on.
    assert (code, said.split()) == (0, ["65532", "0" * 16, "1", "2", "False"])
    steady.run()
    assert steady.end()["phase"] == "Succeeded"
    steady.delete()
    told = release.metrics()
    assert 'memtune_api_requests_total{code="201",verb="POST"}' in told
    assert 'code="403"' not in told, "it asked for what its role does not allow"
    assert "Traceback" not in cluster.log(namespace, operator.metadata.name)


@pytest.mark.slow
def test_metrics_reach_other_namespaces_with_a_network_policy_in_place(
    cluster: Cluster, namespace: str, release: Release
) -> None:
    """The dev cluster does not enforce the policy; the API server takes it, and the Service leads to the operator."""
    release.install({**NAMESPACED, "networkPolicy": {"enabled": True}})
    url = f"http://{release.name}-metrics.{namespace}.svc:9401/metrics"
    script = f"import urllib.request; print(urllib.request.urlopen({url!r}).read().decode())"
    ended = cluster.finish("default", pod(release.name, container(script)))
    said = cluster.log("default", release.name)
    cluster.core.delete_namespaced_pod(release.name, "default")
    assert ended.status.phase == "Succeeded", said
    assert "# TYPE memtune_reconcile_seconds histogram" in said


def test_a_typo_in_the_values_is_rejected_before_installation(release: Release) -> None:
    with pytest.raises(helm_python.HelmError, match="'replica' not allowed"):
        release.install({**NAMESPACED, "replica": 2})
    assert release.helm.list(all_states=True) == []


def test_helm_test_runs_a_job_and_leaves_nothing(cluster: Cluster, namespace: str, release: Release) -> None:
    release.install(NAMESPACED)
    output = release.helm.test(release.name, timeout=180, logs=True)
    assert "Succeeded: " in output["logs"]
    assert [each.metadata.name for each in cluster.core.list_namespaced_pod(namespace).items] == [
        release.operator().metadata.name
    ]
    roles = cluster.rbac.list_namespaced_role(namespace).items
    assert [role.metadata.name for role in roles] == [release.name]


@pytest.mark.slow
def test_helm_test_reports_why_its_job_waits(cluster: Cluster, namespace: str, release: Release) -> None:
    absent = {"repository": "localhost/absent", "tag": "1"}
    release.install({**NAMESPACED, "runnerImage": absent, "test": {"mode": "Probe"}})
    with pytest.raises(helm_python.HelmReleaseError):
        release.helm.test(release.name, timeout=180)
    assert "stalled by ImagePull" in cluster.log(namespace, f"{release.name}-test")


@pytest.mark.slow
@pytest.mark.xdist_group("kinds")
def test_a_job_survives_upgrade_and_uninstallation_of_the_release(
    cluster: Cluster, release: Release, steady: WaitingJob
) -> None:
    """Upgraded from the previous chart, rolled back, uninstalled, installed anew: the same pod, and not one write."""
    assert version_of(PREVIOUS_CHART) != version_of(CHART)
    # Without its CRD: that has rules, which Helm finds a server of this age not to know.
    release.install(NAMESPACED, PREVIOUS_CHART)
    steady.run()
    life, operators = steady.life(), [release.operator().metadata.uid]

    def has_passed() -> None:
        operators.append(release.operator().metadata.uid)
        eventually(
            lambda: 'memtune_jobs{phase="Running"} 1.0' in release.metrics(), "the operator to know the job", 150
        )
        assert steady.life() == life

    release.own_crd()
    release.upgrade({**WITH_CRD, "podAnnotations": {"note": "upgraded"}})
    has_passed()
    release.rollback(1)
    has_passed()
    release.uninstall()
    assert steady.life() == life
    api: Any = client.ApiextensionsV1Api(cluster.connection)
    assert api.read_custom_resource_definition(CRD).metadata.deletion_timestamp is None
    release.own_crd()
    release.install(WITH_CRD)
    has_passed()
    assert len(set(operators)) == 4
    status = steady.end()
    assert status["phase"] == "Succeeded"
    assert [(each["number"], each["verdict"]) for each in status["attempts"]] == [(1, "succeeded")]


@pytest.mark.slow
def test_the_second_replica_takes_over(cluster: Cluster, namespace: str, release: Release, steady: WaitingJob) -> None:
    release.install({**NAMESPACED, "replicas": 2, "podDisruptionBudget": {"enabled": True}})
    assert len(release.operators()) == 2
    leases: Any = client.CoordinationV1Api(cluster.connection)

    def holder() -> str:
        return str(leases.read_namespaced_lease(release.name, namespace).spec.holder_identity)

    first = eventually(holder, "one of the two to hold the Lease")
    steady.run()
    life = steady.life()
    cluster.core.delete_namespaced_pod(first, namespace, grace_period_seconds=0)
    second = eventually(lambda: holder() != first and holder(), "the other to take over", 40)
    assert second in {pod.metadata.name for pod in release.operators()}
    assert steady.life() == life
    assert steady.end()["phase"] == "Succeeded"
