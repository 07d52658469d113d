"""The chart's objects for eight sets of values, validated as strictly as an API server could."""

from __future__ import annotations

import json
from typing import Any

import fast_yaml
import helm_python
import pytest
from chart_values import MONITORED, VALUE_SETS
from crd_schemas import contract, refusals, schema_of
from helm_chart import CHART, FULL_NAME, NAMESPACE, ROOT, Manifest, objects, of_kind, only, pod_specs, render
from kubernetes_models import validate

MODELS = {
    "ClusterRole": "V1ClusterRole",
    "ClusterRoleBinding": "V1ClusterRoleBinding",
    "ConfigMap": "V1ConfigMap",
    "Deployment": "V1Deployment",
    "NetworkPolicy": "V1NetworkPolicy",
    "Pod": "V1Pod",
    "PodDisruptionBudget": "V1PodDisruptionBudget",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "Service": "V1Service",
    "ServiceAccount": "V1ServiceAccount",
}
RULES = "x-kubernetes-validations"
MONITORING = ("PodMonitor", "PrometheusRule", "ServiceMonitor")
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
MADE = {name: objects(values) for name, values in VALUE_SETS.items()}


def schema_of_monitor(kind: str) -> Manifest:
    """Return the Prometheus Operator's schema of one of its kinds."""
    return schema_of(contract(f"monitoring.coreos.com_{kind.lower()}s.yaml"))


@pytest.mark.parametrize("case", VALUE_SETS)
def test_the_kubernetes_client_knows_every_field(case: str) -> None:
    for manifest in MADE[case]:
        if manifest["kind"] in MODELS:
            validate(manifest, MODELS[manifest["kind"]], f"{manifest['kind']} {manifest['metadata']['name']}")
        else:
            assert manifest["kind"] in {*MONITORING, "CustomResourceDefinition"}


@pytest.mark.parametrize(
    "values",
    [
        {"rbac": {"scope": "namespaces", "namespaces": ["2024", "2025"]}, "nameOverride": "true", "replicas": 2},
        {"fullnameOverride": "1e3", "metrics": {**MONITORED, "serviceMonitor": {}, "service": {"enabled": False}}},
        {
            "serviceAccount": {"name": "77"},
            "priorityClassName": "100",
            "metrics": MONITORED,
            "networkPolicy": {"enabled": True},
            "podDisruptionBudget": {"enabled": True},
        },
    ],
    ids=["namespaces", "full name", "account"],
)
def test_a_name_that_yaml_would_take_for_a_number_stays_a_name(values: Manifest) -> None:
    # The name derived from the release would begin with a digit, which is invalid for a Service.
    made = objects({"fullnameOverride": "tuner", **values}, release="77", namespace="2024")
    for manifest in made:
        kind = manifest["kind"]
        validate(manifest["metadata"], "V1ObjectMeta", kind)
        if kind in MODELS:
            validate(manifest, MODELS[kind], kind)
        elif kind in MONITORING:
            assert refusals(schema_of_monitor(kind), manifest, kind) == []
    (container,) = only(made, "Pod")["spec"]["containers"]
    assert isinstance(json.loads(container["env"][0]["value"])["metadata"]["namespace"], str)


@pytest.mark.parametrize("kind", MONITORING)
@pytest.mark.parametrize("case", ["monitored", "everything"])
def test_the_prometheus_operator_knows_every_field(case: str, kind: str) -> None:
    schema = schema_of_monitor(kind)
    manifest = only(MADE[case], kind)
    assert manifest["apiVersion"] == "monitoring.coreos.com/v1"
    # A CRD says of metadata only that it is an object; the client's model knows its fields.
    validate(manifest["metadata"], "V1ObjectMeta", kind)
    assert refusals(schema, manifest, kind) == []


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("ServiceMonitor", {"endpoint": []}),
        ("ServiceMonitor", {"endpoints": [{"port": 9401}]}),
        ("PodMonitor", {"podMetricsEndpoints": [{"relabelings": [{"action": "rename"}]}]}),
        ("PrometheusRule", {"groups": [{"rules": []}]}),
        ("PrometheusRule", {"groups": [{"name": "a", "rules": [{"expr": "up", "for": "soon"}]}]}),
    ],
)
def test_the_checks_find_objects_that_the_api_server_would_refuse(kind: str, change: Manifest) -> None:
    manifest = only(MADE["monitored"], kind)
    assert refusals(schema_of_monitor(kind), {**manifest, "spec": {**manifest["spec"], **change}})


@pytest.mark.parametrize("case", VALUE_SETS)
def test_every_object_is_made_once_in_a_namespace_that_is_named(case: str) -> None:
    seen = set()
    for manifest in MADE[case]:
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata.get("namespace"), metadata["name"])
        assert key not in seen
        seen.add(key)
        assert (manifest["kind"] in CLUSTER_WIDE) == ("namespace" not in metadata), key
        assert len(metadata["name"]) <= 63


@pytest.mark.parametrize("case", VALUE_SETS)
def test_references_name_existing_objects(case: str) -> None:
    made = MADE[case]
    roles = {(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in made}
    accounts = {m["metadata"]["name"] for m in of_kind(made, "ServiceAccount")} | {"given"}
    for manifest in of_kind(made, "RoleBinding") + of_kind(made, "ClusterRoleBinding"):
        reference = manifest["roleRef"]
        assert (reference["kind"], manifest["metadata"].get("namespace"), reference["name"]) in roles
        assert {subject["name"] for subject in manifest["subjects"]} <= accounts
    assert {spec["serviceAccountName"] for spec in pod_specs(made).values()} <= accounts


@pytest.mark.parametrize("case", VALUE_SETS)
def test_selectors_find_the_operators_pods_and_no_others(case: str) -> None:
    made = MADE[case]
    labels = only(made, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [only(made, "Deployment")["spec"]["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"] for service in of_kind(made, "Service")]
    selectors += [policy["spec"]["podSelector"]["matchLabels"] for policy in of_kind(made, "NetworkPolicy")]
    selectors += [budget["spec"]["selector"]["matchLabels"] for budget in of_kind(made, "PodDisruptionBudget")]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= only(made, "Pod")["metadata"]["labels"].items()
    for monitor in of_kind(made, "ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        assert selector.items() <= only(made, "Service")["metadata"]["labels"].items()


@pytest.mark.parametrize("case", VALUE_SETS)
def test_ports_are_those_that_the_operator_opens(case: str) -> None:
    made = MADE[case]
    (container,) = only(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    settings = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert settings["MEMTUNE_OPERATOR_METRICS_PORT"] == str(ports["metrics"])
    assert settings["MEMTUNE_OPERATOR_LIVENESS_PORT"] == str(ports["health"])
    probed = {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")}
    served = {port["targetPort"] for service in of_kind(made, "Service") for port in service["spec"]["ports"]}
    assert probed | served <= set(ports)


def test_quantities_are_always_rendered_as_text() -> None:
    """In a server-side apply, which Helm uses, servers as old as 1.20 reject numbers."""
    given = {"requests": {"cpu": 0.5, "nvidia.com/gpu": 1}, "limits": {"cpu": "2", "memory": 2**31}}
    (container,) = only(objects({"resources": given}), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "0.5", "memory": "256Mi", "nvidia.com/gpu": "1"},
        "limits": {"cpu": "2", "memory": str(2**31)},
    }


def test_one_replica_is_replaced_and_several_hold_a_lease() -> None:
    for case, is_led in (("defaults", False), ("replicas", True), ("everything", True)):
        deployment = only(MADE[case], "Deployment")
        names = {v["name"] for v in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert ("MEMTUNE_OPERATOR_LEASE_NAMESPACE" in names) == is_led
        assert deployment["spec"]["strategy"]["type"] == ("RollingUpdate" if is_led else "Recreate")


def test_the_crd_is_the_generated_one_and_survives_the_chart() -> None:
    found = only(MADE["defaults"], "CustomResourceDefinition")
    assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert found == fast_yaml.load((ROOT / "crds" / "memtune.dev_memorytunedjobs.yaml").read_text())
    assert of_kind(MADE["own namespace"], "CustomResourceDefinition") == []


def crd_for(kube_version: str) -> Manifest:
    return only(objects({}, kube_version=kube_version), "CustomResourceDefinition")


def test_a_server_that_knows_no_rules_is_given_none() -> None:
    """It would ignore them, but Helm validates their fields against it first and refuses the whole chart."""
    with_rules, without = (json.dumps(crd_for(version)) for version in ("1.25", "1.24"))
    assert with_rules.count(RULES) == 8
    assert RULES not in without
    assert json.loads(without) == json.loads(with_rules, object_hook=without_rules)


def without_rules(node: Manifest) -> Manifest:
    return {key: value for key, value in node.items() if key != RULES}


def test_old_servers_get_rules_without_a_field_path() -> None:
    with_fields, without = (json.dumps(crd_for(version)) for version in ("1.28", "1.27"))
    assert '"fieldPath": ".spec.model", ' not in without
    assert "FieldValueForbidden" not in without
    assert json.loads(without) == json.loads(with_fields, object_hook=without_blame)


def without_blame(node: Manifest) -> Manifest:
    return {key: value for key, value in node.items() if "rule" not in node or key in ("rule", "message")}


@pytest.mark.parametrize("kind", MONITORING)
def test_by_itself_a_monitor_is_made_only_where_the_cluster_knows_its_kind(kind: str) -> None:
    assert of_kind(MADE["defaults"], kind) == []
    assert len(of_kind(objects({}, [f"monitoring.coreos.com/v1/{kind}"]), kind)) == 1
    block = kind[0].lower() + kind[1:]
    never = {"metrics": {block: {"create": "never"}}}
    assert of_kind(objects(never, [f"monitoring.coreos.com/v1/{kind}"]), kind) == []


def test_a_service_monitor_without_a_service_is_refused() -> None:
    values = {"metrics": {"service": {"enabled": False}, "serviceMonitor": {"create": "always"}}}
    with pytest.raises(helm_python.HelmError, match=r"needs metrics\.service\.enabled"):
        objects(values)


def test_an_account_that_nobody_makes_has_to_be_named() -> None:
    with pytest.raises(helm_python.HelmError, match=r"serviceAccount\.name: give the account"):
        objects({"serviceAccount": {"create": False}})


def test_attempts_are_scraped_where_jobs_are_watched() -> None:
    values: dict[str, Any] = {**VALUE_SETS["namespaces"], "metrics": {"podMonitor": {"create": "always"}}}
    assert only(objects(values), "PodMonitor")["spec"]["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}
    assert only(MADE["monitored"], "PodMonitor")["spec"]["namespaceSelector"] == {"any": True}


def test_the_notes_fit_the_installation() -> None:
    notes = render({})["NOTES.txt"]
    assert "jobs of the whole cluster" in notes
    assert f"kubectl -n {NAMESPACE} rollout status deployment/{FULL_NAME}" in notes
    for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule"):
        assert f"No {kind} was made (its create is auto, and this cluster does not know the kind)" in notes
    assert "rules/memtune.yaml" in notes
    own = render(VALUE_SETS["own namespace"])["NOTES.txt"]
    assert f"watches jobs in {NAMESPACE}." in own
    assert "no user may create jobs" in own
    assert "must be started after the CRD" in own
    monitored = render(VALUE_SETS["monitored"])["NOTES.txt"]
    assert "was made" not in monitored
    assert "runbookBaseUrl" not in monitored + notes


def test_images_without_a_registry_are_reported() -> None:
    told = "names no registry: nodes without the image try to pull it from docker.io, where MemTune has none"
    assert f"memtune-operator (image.repository) {told}" in render({})["NOTES.txt"]
    mixed = render({"image": {"repository": "registry.example/memtune-operator"}})["NOTES.txt"]
    assert f"memtune-runner (runnerImage.repository) {told}" in mixed
    assert mixed.count("names no registry") == 1
    assert "names no registry" not in render(VALUE_SETS["everything"])["NOTES.txt"]


def test_alerts_without_links_are_reported() -> None:
    notes = render({"metrics": {"prometheusRule": {"create": "always"}}})["NOTES.txt"]
    assert "set metrics.prometheusRule.runbookBaseUrl to where it is served" in notes


def test_helm_lint_passes() -> None:
    for values in VALUE_SETS.values():
        report = helm_python.lint(CHART, values, strict=True)
        assert report["errors"] == []
        assert [message for message in report["messages"] if message["severity"] > 1] == []
