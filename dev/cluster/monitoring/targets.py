"""Pod discovery for Debian's Prometheus, which is built without Kubernetes service discovery.

Every port of a pod is a target with the labels of Prometheus's own discovery (`role: pod`). The relabeling in
docs/prometheus.yaml decides what is scraped, as in any other cluster.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from dev.cluster.api import Client, client, keep_doing
from dev.cluster.layout import LOGS, MONITORING
from dev.cluster.shell import write_new
from dev.cluster.supervisor import Part

TARGETS = MONITORING / "targets.json"
_PODS = "/api/v1/pods"
_META = "__meta_kubernetes_"


def targets() -> Part:
    argv = [sys.executable, "-m", "dev.cluster.monitoring.targets"]
    return Part("targets", argv, LOGS / "targets.log", ready=TARGETS.exists)


def describe(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The targets file: one target per declared container port."""
    return [
        {"targets": [f"{pod['status']['podIP']}:{port['containerPort']}"], "labels": _labels(pod, container, port)}
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    ]


def _labels(pod: dict[str, Any], container: dict[str, Any], port: dict[str, Any]) -> dict[str, str]:
    metadata = pod["metadata"]
    owner = next((each for each in metadata.get("ownerReferences", []) if each.get("controller")), None)
    labels = {
        "namespace": metadata["namespace"],
        "pod_name": metadata["name"],
        "pod_ip": pod["status"]["podIP"],
        "pod_phase": pod["status"]["phase"],
        "pod_node_name": pod["spec"].get("nodeName", ""),
        "pod_container_name": container["name"],
        "pod_container_port_name": port.get("name", ""),
        "pod_container_port_number": str(port["containerPort"]),
    }
    if owner:
        labels |= {"pod_controller_kind": owner["kind"], "pod_controller_name": owner["name"]}
    labels |= {
        f"pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": text for name, text in metadata.get("labels", {}).items()
    }
    return {_META + name: text for name, text in labels.items()}


def _write(api: Client) -> None:
    write_new(TARGETS, json.dumps(describe(api.request("GET", _PODS)["items"]), indent=1))


def main() -> None:
    api = client()
    keep_doing(lambda: _write(api), api, _PODS)


if __name__ == "__main__":
    main()
