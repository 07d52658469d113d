"""Chart and operator agree: the operator reads what the chart sets, and exports the metrics that rules use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_values import VALUE_SETS
from helm_chart import FULL_NAME, NAMESPACE, objects, only
from known_metrics import GOLDEN
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from promtool import check_metrics

from memtune_operator import metrics, settings

RUNNER_METRICS = Path(__file__).parents[2] / "golden" / "runner-metrics.txt"


def settings_of(case: str) -> settings.Settings:
    (container,) = only(objects(VALUE_SETS[case]), "Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value", "from-the-pod") for variable in container["env"]}
    names = {value for value in vars(settings).values() if str(value).startswith(settings.PREFIX)}
    ours = {name for name in variables if name.startswith(settings.PREFIX)}
    assert ours <= names - {settings.PREFIX}
    return settings.read_settings(variables)


@pytest.mark.parametrize("case", VALUE_SETS)
def test_the_operator_accepts_the_settings_of_the_chart(case: str) -> None:
    taken = settings_of(case)
    assert taken.identity == "from-the-pod"
    assert taken.runner_image


def test_the_whole_cluster_without_a_lease_is_the_default() -> None:
    default = settings_of("defaults")
    assert (default.namespaces, default.lease_namespace, default.reads_nodes) == ((), "", True)
    policy = default.policy
    assert (policy.host_path, policy.host_network, policy.privileged) == (False, False, False)
    assert policy.service_accounts == ("default",)


def test_values_reach_the_operator() -> None:
    assert settings_of("namespaces").namespaces == ("team-a", "team-b")
    assert settings_of("own namespace").namespaces == (NAMESPACE,)
    led = settings_of("replicas")
    assert (led.lease_namespace, led.lease_name) == (NAMESPACE, FULL_NAME)
    assert settings_of("defaults").gpu_hour_prices == {}
    assert settings_of("namespaces").gpu_hour_prices == {
        "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb": 1e-05,
        "NVIDIA-H100-80GB-HBM3": 2.5,
        "NVIDIA-L4": 1.0,
    }
    policy = settings_of("namespaces").policy
    assert (policy.host_path, policy.host_network, policy.service_accounts) == (False, False, ("trainer", "default"))
    assert policy.is_restricted
    policy = settings_of("own namespace").policy
    assert (policy.host_path, policy.host_network, policy.is_restricted) == (True, True, False)
    policy = settings_of("fenced").policy
    assert (policy.host_path, policy.host_network, policy.privileged) == (False, True, True)
    assert policy.service_accounts is None
    assert (policy.allowed_namespaces, policy.denied_namespaces) == (("team-a", "team-b"), ("kube-system",))
    everything = settings_of("everything")
    assert (everything.metrics_port, everything.liveness_port) == (9999, 8081)
    assert everything.runner_image == "registry.example/memtune-runner:nightly-cu130"


def told(registry: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield each metric of a registry under its Prometheus name, with its labels."""
    for collector in registry._collector_to_names:
        for metric in collector.describe() if hasattr(collector, "describe") else ():
            labels = list(getattr(collector, "_labelnames", ()))
            suffix = "_total" if metric.type == "counter" else ""
            yield metric.name + suffix, sorted([*labels, *(["le"] if metric.type == "histogram" else [])])


def test_the_operator_serves_the_metrics_of_the_golden_list() -> None:
    found = dict(told(metrics.Metrics().registry))
    gauges = {name: sorted((*metrics._JOB, *labels)) for name, _, labels, _ in metrics._GAUGES}
    assert {**found, **gauges, "memtune_jobs": ["phase"]} == GOLDEN["operator"]


def test_the_runner_serves_the_metrics_of_the_golden_list() -> None:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(RUNNER_METRICS.read_text()):
        suffix = "_total" if family.type == "counter" else ""
        labels = {label for sample in family.samples for label in sample.labels}
        found[family.name + suffix] = labels
    assert {name: sorted(labels) for name, labels in found.items()} == GOLDEN["runner"]


def test_promtool_finds_no_problem_in_the_metrics() -> None:
    check_metrics(RUNNER_METRICS.read_text())
    check_metrics(generate_latest(metrics.Metrics().registry).decode())
