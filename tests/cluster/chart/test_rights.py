"""The operator's account has the rights that the golden list documents and no other: each is asked of the API server.

`tests/golden/chart-rights.txt` is that list; here it is what a cluster makes of the chart's roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from foreign_kinds import GANG_CRDS, installed
from helm_chart import ROOT
from helm_release import NAMESPACED, Release
from pods import Cluster
from rights import Right, Rights

from memtune_operator import measurements
from memtune_operator.kubernetes import traces

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kinds")]
GOLDEN = (ROOT / "tests" / "golden" / "chart-rights.txt").read_text()
RULE = re.compile(r"^(?:Cluster)?Role (?:\S+/)?(rel-memtune(?:-nodes)?): (.+): (.+)$", re.MULTILINE)
# What Kubernetes lets everybody ask: what they may do themselves.
EVERYBODY = {
    Right("authorization.k8s.io", "selfsubjectaccessreviews", "create"),
    Right("authorization.k8s.io", "selfsubjectrulesreviews", "create"),
}
NODES = {Right("", "nodes", "list")}


def documented(case: str) -> Iterator[Right]:
    """The rights of the operator's own roles in one part of the golden list."""
    (part,) = [part for part in GOLDEN.split("# ") if part.startswith(f"{case}\n")]
    for _, resources, verbs in RULE.findall(part):
        # A right on one name is asked by that name.
        for resource in resources.split(", ") if " named " not in resources else ():
            group, _, name = resource.partition("/")
            yield from (Right("" if group == "core" else group, name, verb) for verb in verbs.split())


def test_cluster_wide_rights_are_those_documented(release: Release, cluster: Cluster) -> None:
    release.create_without_operator({"crd": {"install": False}})
    rights = Rights(cluster.connection, release.namespace, release.name)
    known, wanted = rights.known(), set(documented("defaults"))
    assert wanted <= known
    for namespace in ("", release.namespace, "kube-system"):
        assert rights.granted(namespace, known) == wanted | EVERYBODY, namespace or "all namespaces"


def test_config_map_rights_cover_only_its_own_caches(release: Release, cluster: Cluster) -> None:
    release.create_without_operator({"crd": {"install": False}})
    rights = Rights(cluster.connection, release.namespace, release.name)
    verbs = {verb: Right("", "configmaps", verb) for verb in ("create", "get", "list", "update", "delete")}
    for name in (measurements.NAME, traces.NAME):
        own = rights.granted(release.namespace, set(verbs.values()), name=name)
        assert own == {verbs["create"], verbs["get"], verbs["update"]}
    assert rights.granted(release.namespace, set(verbs.values()), name="another") == {verbs["create"]}


def test_gang_rights_are_added_when_enabled(cluster: Cluster, release: Release) -> None:
    with installed(cluster, *GANG_CRDS):
        release.create_without_operator({**NAMESPACED, "gangs": ["volcano", "coscheduling", "jobset"]})
        rights = Rights(cluster.connection, release.namespace, release.name)
        known, wanted = rights.known(), set(documented("namespaces"))
        assert wanted <= known
        assert rights.granted(release.namespace, known) == wanted | EVERYBODY | NODES


def test_lease_rights_cover_one_lease_by_name(cluster: Cluster, release: Release) -> None:
    release.create_without_operator({**NAMESPACED, "replicas": 2})
    rights = Rights(cluster.connection, release.namespace, release.name)
    lease = {
        verb: Right("coordination.k8s.io", "leases", verb) for verb in ("create", "get", "update", "list", "delete")
    }
    held = rights.granted(release.namespace, set(lease.values()), name=release.name)
    assert held == {lease["create"], lease["get"], lease["update"]}
    assert rights.granted(release.namespace, set(lease.values()), name="another") == {lease["create"]}


@pytest.mark.parametrize("reads_nodes", [True, False], ids=["with nodes", "without nodes"])
def test_namespaced_rights_are_those_documented(release: Release, cluster: Cluster, reads_nodes: bool) -> None:
    release.create_without_operator({**NAMESPACED, "rbac": {"scope": "namespaces", "readNodes": reads_nodes}})
    rights = Rights(cluster.connection, release.namespace, release.name)
    known, everywhere = rights.known(), EVERYBODY | (NODES if reads_nodes else set())
    assert rights.granted(release.namespace, known) == {*documented("own namespace"), *everywhere}
    for namespace in ("", "kube-system"):
        assert rights.granted(namespace, known) == everywhere, namespace or "all namespaces"
