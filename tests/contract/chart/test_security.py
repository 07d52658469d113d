"""The security of the chart's pods and its RBAC rules.

The dev cluster enforces neither Pod Security nor network policies: these tests check the manifests, not a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart_values import VALUE_SETS
from helm_chart import Manifest, objects, of_kind, only, pod_specs
from pod_security import violations

GOLDEN = Path(__file__).parents[2] / "golden" / "chart-rights.txt"
MADE = {name: objects(values) for name, values in VALUE_SETS.items()}


def with_writable_root(spec: Manifest) -> list[str]:
    """Return containers with a writable root file system, which no Pod Security Standard forbids."""
    return [each["name"] for each in spec["containers"] if not each["securityContext"].get("readOnlyRootFilesystem")]


@pytest.mark.parametrize("case", VALUE_SETS)
def test_every_pod_is_as_restricted_as_pod_security_can_ask_for(case: str) -> None:
    specs = pod_specs(MADE[case])
    assert len(specs) == 2
    for name, spec in specs.items():
        assert violations(spec) == [], name
        assert with_writable_root(spec) == [], name


@pytest.mark.parametrize("case", VALUE_SETS)
def test_tokens_are_mounted_where_they_are_needed_only(case: str) -> None:
    assert all(spec["automountServiceAccountToken"] for spec in pod_specs(MADE[case]).values())
    accounts = of_kind(MADE[case], "ServiceAccount")
    assert not any(account["automountServiceAccountToken"] for account in accounts)


def rights() -> Iterator[str]:
    """Yield every permission that the chart grants, one line per rule."""
    for case in ("defaults", "namespaces", "own namespace", "replicas"):
        yield f"# {case}"
        for role in of_kind(MADE[case], "ClusterRole") + of_kind(MADE[case], "Role"):
            metadata = role["metadata"]
            where = f"{metadata['namespace']}/" if "namespace" in metadata else ""
            given = sorted(label for label in metadata["labels"] if "aggregate-to" in label)
            to = "".join(f" {label.rpartition('-')[2]}" for label in given)
            for rule in role["rules"]:
                names = "".join(f" named {name}" for name in rule.get("resourceNames", ()))
                what = ", ".join(f"{g or 'core'}/{r}" for g in rule["apiGroups"] for r in rule["resources"])
                head = f"{role['kind']} {where}{metadata['name']}{to and f' (to{to})'}"
                yield f"{head}: {what}{names}: {' '.join(rule['verbs'])}"


def test_rights_are_exactly_those_of_the_golden_file() -> None:
    text = "\n".join(rights()) + "\n"
    if os.environ.get("MEMTUNE_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text


@pytest.mark.parametrize("case", VALUE_SETS)
def test_no_role_grants_rights_that_lead_to_more(case: str) -> None:
    for role in of_kind(MADE[case], "ClusterRole") + of_kind(MADE[case], "Role"):
        for rule in role["rules"]:
            assert not {"*", "escalate", "bind", "impersonate"} & set(rule["verbs"])
            assert not {"*"} & set(rule["apiGroups"])
            forbidden = {"*", "secrets", "pods/exec", "pods/log", "pods/attach", "pods/ephemeralcontainers"}
            assert not forbidden & set(rule["resources"])


def test_a_namespaced_installation_has_no_cluster_wide_rights() -> None:
    made = MADE["own namespace"]
    assert [m["kind"] for m in made if m["kind"].startswith("Cluster")] == []
    # The roles for users, which aggregate to edit and view, have no bindings here.
    assert of_kind(MADE["namespaces"], "ClusterRoleBinding") == []


def test_the_network_policy_allows_the_scrape_and_the_api_server() -> None:
    spec = only(MADE["fenced"], "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    (ingress,) = spec["ingress"]
    assert ingress["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert ingress["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    names, api_server = spec["egress"]
    assert {(port["port"], port["protocol"]) for port in names["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert api_server == {
        "ports": [{"port": 6443, "protocol": "TCP"}],
        "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    }
    named_ports = only(MADE["fenced"], "Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert "metrics" in {port["name"] for port in named_ports}


def test_a_network_policy_without_addresses_bounds_ports_alone() -> None:
    spec = only(MADE["everything"], "NetworkPolicy")["spec"]
    assert "from" not in spec["ingress"][0]
    assert [port["port"] for port in spec["egress"][1]["ports"]] == [443, 6443]
    assert "to" not in spec["egress"][1]
