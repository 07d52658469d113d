"""The chart's values: each one is in its README's table and in the schema, and no other is accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from ipaddress import ip_network
from typing import Any

import fast_yaml
import helm_python
import pytest
from chart_values import VALUE_SETS
from helm_chart import CHART, objects, only

VALUES: dict[str, Any] = fast_yaml.load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
MONITORING = [f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "PrometheusRule", "ServiceMonitor")]
# What Helm passes to a subchart.
OF_HELM = {("global",), ("enabled",)}
ROW = re.compile(r"^\| `([\w.]+)` \| `(.+?)` \| (.+) \|$", re.MULTILINE)
README = {name: (default, words) for name, default, words in ROW.findall((CHART / "README.md").read_text())}


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """Return the node behind a reference."""
    reference = node.get("$ref")
    return SCHEMA["definitions"][reference.rpartition("/")[2]] if reference else node


def leaves(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value that is not a group."""
    for name, field in node["properties"].items():
        here, inner = (*path, name), resolved(field)
        if here in OF_HELM:
            continue
        if "properties" in inner and default_of(here) != {}:
            yield from leaves(inner, here)
        else:
            yield here


def default_of(path: tuple[str, ...]) -> Any:
    return at(VALUES, path)


def at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values[name]
    return values


def with_value(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return values that set only this one."""
    for name in reversed(path):
        value = {name: value}
    return dict(value)


def requiring_nodes(*terms: dict[str, Any]) -> dict[str, Any]:
    """Return an affinity to nodes that match one of these terms."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


LEAVES = list(leaves(SCHEMA))
GROUPS = sorted({path[:length] for path in LEAVES for length in range(len(path))})


def given(values: Any) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value, down to the groups of the default file."""

    def walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if isinstance(value, dict) and path not in LEAVES:
            for name, inner in value.items():
                yield from walk(inner, (*path, name))
        else:
            yield path

    return walk(values, ())


def test_defaults_schema_and_readme_know_the_same_values() -> None:
    assert len(LEAVES) > 50
    assert set(given(VALUES)) == set(LEAVES)
    assert list(README) == [".".join(path) for path in LEAVES]


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_the_readme_gives_the_default(path: tuple[str, ...]) -> None:
    text, words = README[".".join(path)]
    assert fast_yaml.load(text) == default_of(path)
    assert len(words) > 10


@pytest.mark.parametrize("path", GROUPS, ids=lambda path: ".".join(path) or "top")
def test_a_typo_is_refused(path: tuple[str, ...]) -> None:
    with pytest.raises(helm_python.HelmValuesError, match="'enabeld' not allowed"):
        objects(with_value((*path, "enabeld"), True))


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_a_value_of_the_wrong_type_is_refused(path: tuple[str, ...]) -> None:
    default = default_of(path)
    wrong: Any = 7 if isinstance(default, (dict, list, str)) or default is None else "seven"
    with pytest.raises(helm_python.HelmValuesError, match="/".join(path)):
        objects(with_value(path, wrong))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("image", "tag"), "a tag"),
        (("image", "digest"), "sha256:short"),
        (("image", "pullPolicy"), "always"),
        (("replicas",), 0),
        (("metrics", "port"), 70000),
        (("metrics", "port"), 80),
        (("healthPort",), 1023),
        (("metrics", "podMonitor", "create"), "true"),
        (("metrics", "podMonitor", "interval"), "30"),
        (("metrics", "prometheusRule", "runbookBaseUrl"), "docs"),
        (("rbac", "scope"), "namespace"),
        (("rbac",), {"scope": "cluster", "namespaces": ["a"]}),
        (("policy", "serviceAccounts"), ["*", "a"]),
        (("gpuHourPrices",), {"NVIDIA-L4": 0}),
        (("gpuHourPrices",), {"NVIDIA-L4": "0.5"}),
        (("gpuHourPrices",), {"NVIDIA-L4": 1000001}),
        (("policy", "podSecurity"), "baseline"),
        (("policy", "allowedNamespaces"), ["a,b"]),
        (("tolerations",), [{"keys": "a"}]),
        (("extraEnv",), [{"name": "MEMTUNE_OPERATOR_RUNNER_IMAGE", "value": "a"}]),
        (("extraEnv",), [{"name": "A", "valueFrom": {"secret": {}}}]),
        (("extraEnv",), [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "keys": "b"}}}]),
        (("affinity",), {"nodeAffinity": {"requiredDuringScheduling": {}}}),
        (("affinity",), requiring_nodes()),
        (("affinity",), requiring_nodes({})),
        (("affinity",), {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topology": "a"}]}}),
        (("networkPolicy", "metricsFrom"), [{}]),
        (("networkPolicy", "metricsFrom"), [{"ipBlock": {"cidr": "10.0.0.0/33"}}]),
        (("podDisruptionBudget", "maxUnavailable"), 0),
        (("test", "mode"), "Fixed"),
        (("test", "namespace"), "a.b"),
        (("fullnameOverride",), "gpu.tune"),
        (("nameOverride",), 70 * "a"),
        (("rbac",), {"scope": "namespaces", "namespaces": ["a.b"]}),
        (("image", "repository"), "registry.example/memtune:latest"),
        (("labels",), {"team": "ML team!"}),
        (("podLabels",), {"team ": "ml"}),
        (("metrics", "serviceMonitor", "labels"), {"release": "a b"}),
        (("resources", "limits"), {"memory": "lots"}),
        (("extraEnv",), [{"name": "A", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        (("tolerations",), [{"key": "a", "operator": "Exists", "value": "b"}]),
        (("networkPolicy", "metricsFrom"), [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]),
        (("networkPolicy", "extraEgress"), [{"ports": [{"port": 3128}]}]),
    ],
)
def test_a_value_that_cannot_work_is_refused(path: tuple[str, ...], value: Any) -> None:
    with pytest.raises(helm_python.HelmValuesError, match="/".join(path)):
        objects(with_value(path, value))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fullnameOverride": "9tune"}, "9tune is no name for a Service.*: set fullnameOverride"),
        (
            {"policy": {"podSecurity": "restricted", "hostPath": True}},
            "policy.hostPath is true, which policy.podSecurity restricted forbids",
        ),
        ({"metrics": {"port": 8080}}, "metrics.port and healthPort are both 8080"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm_python.HelmError, match=message):
        objects(values)


CIDRS = (
    *("10.0.0.1/32", "0.0.0.0/0", "255.249.199.99/19", "fd00::/8", "::/0", "::1/128", "2001:DB8:1:2:3:4:5::/112"),
    *("2001:db8:1:2:3:4:5:6/128", "::2:3:4:5:6:7:8/99", "1::8/100"),
)
NO_CIDRS = (
    *("10.0.0.1", "999.1.1.1/99", "256.0.0.0/8", "10.0.0.0/33", "010.0.0.0/8", "10.0.0/8", "10.0.0.0.0/8", "/8", ":/0"),
    *("fd00::", "fd00::/129", "fd00:/8", ":fd00::/8", "fd00:::/8", "1::2::3/64", "12345::/16", "1:2:3/48"),
    *("1:2:3:4:5:6:7/112", "1:2:3:4:5:6:7:8:9/128", "1::2:3:4:5:6:7:8/128", "1:2:3:4:5:6:7:8::/128", "g::/16"),
)


@pytest.mark.parametrize("cidr", CIDRS)
def test_a_range_of_addresses_is_taken(cidr: str) -> None:
    assert ip_network(cidr, strict=False)
    assert objects({"networkPolicy": {"enabled": True, "apiServer": {"cidrs": [cidr]}}})


@pytest.mark.parametrize("cidr", NO_CIDRS)
def test_an_invalid_cidr_is_refused(cidr: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match="networkPolicy/apiServer/cidrs/0"):
        objects({"networkPolicy": {"apiServer": {"cidrs": [cidr]}}})


@pytest.mark.parametrize("interval", ["30s", "1m30s", "1d", "500ms"])
@pytest.mark.parametrize(("monitor", "kind"), [("podMonitor", "PodMonitor"), ("serviceMonitor", "ServiceMonitor")])
def test_an_interval_is_any_duration_of_prometheus(monitor: str, kind: str, interval: str) -> None:
    made_monitor = only(objects({"metrics": {monitor: {"create": "always", "interval": interval}}}), kind)
    (endpoint,) = made_monitor["spec"].get("podMetricsEndpoints") or made_monitor["spec"]["endpoints"]
    assert endpoint["interval"] == interval


def test_another_chart_may_depend_on_this_one_under_a_condition() -> None:
    assert objects({"global": {"team": "ml"}, "enabled": True}) == objects({})
    with pytest.raises(helm_python.HelmValuesError, match="/enabled"):
        objects({"enabled": "yes"})


def test_a_repository_may_name_the_port_of_its_registry() -> None:
    assert objects({"image": {"repository": "registry.example:5000/memtune"}})


@pytest.mark.parametrize("product", ["NVIDIA L4", "a=1,b", 64 * "a"])
def test_a_price_is_one_of_a_product_as_nodes_name_it(product: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=f"invalid propertyName '{product}'"):
        objects({"gpuHourPrices": {product: 0.5}})


@pytest.mark.parametrize("block", ["labels", "podLabels"])
def test_a_label_that_the_chart_sets_itself_is_refused(block: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=r"invalid propertyName 'app\.kubernetes\.io/name'"):
        objects({block: {"app.kubernetes.io/name": "other"}})


def test_the_sets_use_every_value() -> None:
    used = {path for values in VALUE_SETS.values() for path in given(values)}
    assert set(LEAVES) - used == {("image", "tag"), ("runnerImage", "digest")}


@pytest.mark.parametrize("case", VALUE_SETS)
def test_each_value_of_a_set_changes_the_objects(case: str) -> None:
    for path in given(VALUE_SETS[case]):
        without = deepcopy(VALUE_SETS[case])
        del at(without, path[:-1])[path[-1]]
        if path not in NEEDED:
            assert made(without) != made(VALUE_SETS[case]), ".".join(path)


# The others of their set are refused without these.
NEEDED = {("serviceAccount", "name"), ("rbac", "scope")}


def made(values: dict[str, Any]) -> list[Any]:
    """Return the objects for a cluster with the Prometheus Operator's kinds, and for one without."""
    return [objects(values), objects(values, MONITORING)]


def images(values: dict[str, Any]) -> tuple[str, str]:
    (container,) = only(objects(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    runner: str = next(v["value"] for v in container["env"] if v["name"] == "MEMTUNE_OPERATOR_RUNNER_IMAGE")
    return container["image"], runner


def test_an_image_is_named_by_digest_else_by_tag_else_by_the_charts_version() -> None:
    digest = "sha256:" + "a" * 64
    version = fast_yaml.load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert images({}) == (f"memtune-operator:{version}", f"memtune-runner:{version}")
    assert images({"image": {"tag": "x"}, "runnerImage": {"digest": digest}}) == (
        "memtune-operator:x",
        f"memtune-runner@{digest}",
    )
    assert images({"image": {"tag": "x", "digest": digest}})[0] == f"memtune-operator@{digest}"
