"""The chart as it is installed when nobody says anything: for the whole cluster, with the CRD, and with monitors where
their kinds are known."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from chart_values import VALUE_SETS
from foreign_kinds import MONITORING_CRDS, installed
from helm_release import Release
from operator_process import Jobs
from pods import Cluster, eventually
from raw_api import RawApi
from waiting_job import WaitingJob

MONITORING = ("podmonitors", "prometheusrules", "servicemonitors")


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[str]:
    """A namespace that is not the release's."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.core.create_namespace({"metadata": {"name": name}})
    eventually(lambda: cluster.accepts_pods(name), "the namespace's default ServiceAccount")
    yield name
    cluster.core.delete_namespace(name)


def all_active(cluster: Cluster) -> bool:
    return all(each.status.phase == "Active" for each in cluster.core.list_namespace().items)


@pytest.mark.alone
def test_jobs_of_all_namespaces_are_reconciled_by_default(cluster: Cluster, elsewhere: str, release: Release) -> None:
    # In a namespace that ends, no operator may create the events of its jobs.
    eventually(lambda: all_active(cluster), "the namespaces of earlier tests to be gone", 180)
    release.own_crd()
    release.install({})
    release.helm.test(release.name, timeout=180)
    far = WaitingJob(cluster, Jobs(cluster.connection, elsewhere), elsewhere)
    far.run()
    assert far.end()["phase"] == "Succeeded"
    assert 'code="403"' not in release.metrics(), "it asked for what its role does not allow"


@pytest.mark.xdist_group("kinds")
@pytest.mark.slow
def test_monitors_are_installed_where_their_crds_exist(cluster: Cluster, release: Release) -> None:
    api = RawApi(cluster.connection)
    with installed(cluster, *MONITORING_CRDS):
        release.create_without_operator({"crd": {"install": False}})
        for plural in MONITORING:
            made = api.get(f"/apis/monitoring.coreos.com/v1/namespaces/{release.namespace}/{plural}")["items"]
            assert len(made) == 1, plural
        release.uninstall()


@pytest.mark.xdist_group("kinds")
def test_the_api_server_accepts_every_object_of_the_chart(cluster: Cluster, release: Release) -> None:
    """Helm writes by server-side apply, in which API servers of this age know numbers of no quantity."""
    api = RawApi(cluster.connection)
    with installed(cluster, *MONITORING_CRDS):
        for values in [*VALUE_SETS.values(), {"resources": {"requests": {"cpu": 1}, "limits": {"memory": 2**30}}}]:
            release.own_crd()
            for manifest in release.would_install(values):
                metadata = manifest["metadata"]
                if "namespace" in metadata:
                    metadata["namespace"] = release.namespace
                assert api.apply(manifest, dry_run=True)["metadata"]["name"] == metadata["name"]
