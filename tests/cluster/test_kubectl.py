"""The cluster as its user meets it: by kubectl."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from pods import Cluster, container, pod

from devcluster import binaries
from devcluster.shell import run

Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(devcluster: Callable[..., str], kubeconfig: str) -> Kubectl:  # noqa: ARG001  # ours has a kubectl
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    return lambda *words: run([binaries.command("kubectl"), *words], env=environment)


def test_nodes_are_listed_as_ready(kubectl: Kubectl, two_nodes: tuple[str, str]) -> None:
    rows = [line.split()[:2] for line in kubectl("get", "nodes", "--no-headers").splitlines()]
    assert rows == [[name, "Ready"] for name in two_nodes]


def test_a_pod_is_read_entered_and_deleted(kubectl: Kubectl, cluster: Cluster, namespace: str) -> None:
    script = "import signal; print('at work', flush=True); signal.pause()"
    cluster.create(namespace, pod("worker", container(script)))
    kubectl("--namespace", namespace, "wait", "--for=condition=Ready", "pod/worker", "--timeout=60s")
    assert kubectl("--namespace", namespace, "logs", "worker") == "at work\n"
    entered = kubectl("--namespace", namespace, "exec", "worker", "--", "python3", "-c", "print(6 * 7)")
    assert entered == "42\n"
    kubectl("--namespace", namespace, "delete", "pod", "worker")
    assert cluster.gone(namespace, "worker")
