"""Chart and operator are of one mind: what the chart sets the operator reads, and what rules ask for it tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from chart_values import VALUE_SETS
from helm_chart import FULL_NAME, NAMESPACE, objects, only
from known_metrics import GOLDEN
from prometheus_client import generate_latest
from promtool import check_metrics

settings_module = pytest.importorskip("memtune_operator.settings", reason="the operator itself is not merged yet")
metrics_module = pytest.importorskip("memtune_operator.metrics", reason="the operator itself is not merged yet")


def settings_of(case: str) -> Any:
    (container,) = only(objects(VALUE_SETS[case]), "Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value", "from-the-pod") for variable in container["env"]}
    names = {value for value in vars(settings_module).values() if str(value).startswith(settings_module.PREFIX)}
    ours = {name for name in variables if name.startswith(settings_module.PREFIX)}
    assert ours <= names - {settings_module.PREFIX}
    return settings_module.read_settings(variables)


@pytest.mark.parametrize("case", VALUE_SETS)
def test_the_operator_takes_what_the_chart_sets(case: str) -> None:
    settings = settings_of(case)
    assert settings.identity == "from-the-pod"
    assert settings.runner_image


def test_the_whole_cluster_without_a_lease_is_the_default() -> None:
    settings = settings_of("defaults")
    assert (settings.namespaces, settings.lease_namespace, settings.reads_nodes) == ((), "", True)
    policy = settings.policy
    assert (policy.host_path, policy.host_network, policy.privileged) == (False, False, False)
    assert policy.service_accounts == ("default",)


def test_values_arrive() -> None:
    assert settings_of("namespaces").namespaces == ("team-a", "team-b")
    assert settings_of("own namespace").namespaces == (NAMESPACE,)
    led = settings_of("replicas")
    assert (led.lease_namespace, led.lease_name) == (NAMESPACE, FULL_NAME)
    policy = settings_of("namespaces").policy
    assert (policy.host_path, policy.host_network, policy.service_accounts) == (False, True, ("trainer", "default"))
    policy = settings_of("fenced").policy
    assert (policy.host_path, policy.host_network, policy.privileged) == (False, True, True)
    assert policy.service_accounts is None
    assert (policy.allowed_namespaces, policy.denied_namespaces) == (("team-a",), ("kube-system",))
    everything = settings_of("everything")
    assert (everything.metrics_port, everything.liveness_port) == (9999, 8081)
    assert everything.runner_image == "registry.example/memtune-runner:nightly-cu130"


def told(registry: Any) -> Iterator[tuple[str, list[str]]]:
    """Each metric of a registry as Prometheus names it, with its labels."""
    for collector in registry._collector_to_names:
        for metric in collector.describe() if hasattr(collector, "describe") else ():
            labels = list(getattr(collector, "_labelnames", ()))
            suffix = "_total" if metric.type == "counter" else ""
            yield metric.name + suffix, sorted([*labels, *(["le"] if metric.type == "histogram" else [])])


def test_the_operator_tells_the_metrics_of_the_golden_list() -> None:
    metrics = metrics_module.Metrics()
    found = dict(told(metrics.registry))
    gauges = {name: sorted((*metrics_module._JOB, *labels)) for name, _, labels, _ in metrics_module._GAUGES}
    assert {**found, **gauges, "memtune_jobs": ["phase"]} == GOLDEN["operator"]


def test_prometheus_finds_nothing_to_complain_of() -> None:
    check_metrics(generate_latest(metrics_module.Metrics().registry).decode())
