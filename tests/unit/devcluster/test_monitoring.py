"""devcluster's Prometheus configuration: its pods, and its differences from the shipped one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dev.cluster.monitoring import dashboards, page, prometheus
from dev.cluster.monitoring.targets import TARGETS, describe
from dev.cluster.shell import ClusterError


def pod(**more: Any) -> dict[str, Any]:
    metrics = {"name": "memtune-metrics", "containerPort": 9400}
    found: dict[str, Any] = {
        "metadata": {
            "name": "llama-train-1-0",
            "namespace": "lab",
            "labels": {"memtune.dev/run-kind": "train"},
            "ownerReferences": [
                {"kind": "Cluster", "name": "lab"},
                {"kind": "MemoryTunedJob", "name": "llama", "controller": True},
            ],
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "trainer", "ports": [metrics]}, {"name": "sidecar"}]},
        "status": {"phase": "Running", "podIP": "10.214.1.7"},
    }
    return {**found, **more}


def test_a_port_is_described_as_prometheus_itself_would() -> None:
    (target,) = describe([pod()])
    assert target["targets"] == ["10.214.1.7:9400"]
    assert target["labels"] == {
        "__meta_kubernetes_namespace": "lab",
        "__meta_kubernetes_pod_name": "llama-train-1-0",
        "__meta_kubernetes_pod_ip": "10.214.1.7",
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_node_name": "node-1",
        "__meta_kubernetes_pod_container_name": "trainer",
        "__meta_kubernetes_pod_container_port_name": "memtune-metrics",
        "__meta_kubernetes_pod_container_port_number": "9400",
        "__meta_kubernetes_pod_controller_kind": "MemoryTunedJob",
        "__meta_kubernetes_pod_controller_name": "llama",
        "__meta_kubernetes_pod_label_memtune_dev_run_kind": "train",
    }


def test_a_pod_without_an_address_or_a_port_is_no_target() -> None:
    silent = pod(spec={"containers": [{"name": "trainer"}]})
    assert describe([pod(status={"phase": "Pending"}), silent]) == []


def test_a_pod_without_owner_and_labels_is_described() -> None:
    (target,) = describe([pod(metadata={"name": "lone", "namespace": "lab"})])
    assert not [name for name in target["labels"] if "controller" in name or "_label_" in name]


def test_the_shipped_configuration_is_used_with_targets_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "prometheus.yaml"
    monkeypatch.setattr(prometheus, "_SETTINGS", settings)
    prometheus.write_settings()
    assert "role: pod" not in settings.read_text()
    assert settings.read_text().count(f"files: [{TARGETS}]") == 2


def test_a_changed_configuration_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "prometheus.yaml"
    shipped.write_text("scrape_configs: []\n")
    monkeypatch.setattr(prometheus, "_SHIPPED", shipped)
    with pytest.raises(ClusterError, match="has no `scrape_interval: 15s` any more"):
        prometheus.write_settings()


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("/assets/page.js?v=1", "assets/page.js"),
        ("/d/memtune-job", "index.html"),
        ("/../secret", "index.html"),
        ("/", "index.html"),
    ],
)
def test_files_of_the_page_are_found_in_a_cache_behind_a_link(
    path: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / "disk" / "page"
    (built / "assets").mkdir(parents=True)
    for name in ("assets/page.js", "index.html", "../secret"):
        (built / name).touch()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    monkeypatch.setattr(page, "directory", lambda: tmp_path / "cache" / "page")
    handler = dashboards._Handler.__new__(dashboards._Handler)
    assert handler.translate_path(path) == str(built / file)
