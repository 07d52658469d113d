"""Cluster readiness: every node is Ready, and a test pod on it resolved a Service and completed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dev.cluster import images
from dev.cluster.api import ApiError, client
from dev.cluster.gpus import add_gpus
from dev.cluster.layout import GPUS_PER_NODE, STATUS, SUPERVISOR_LOCK, Node
from dev.cluster.shell import ClusterError, read_whole, say
from dev.cluster.state import problems
from dev.cluster.supervisor import read_status
from dev.cluster.versions import PAUSE_IMAGE

_SYSTEM_PODS = "/api/v1/namespaces/kube-system/pods"


def wait_for(
    what: str,
    is_there: Callable[[], bool],
    seconds: float = 120,
    lock: Path = SUPERVISOR_LOCK,
    wrong: Callable[[], list[str]] = problems,
) -> None:
    """Wait for a condition, and fail at once when a part of the lock's supervisor dies."""
    deadline = time.monotonic() + seconds
    while not is_there():
        if lock.is_file() and (found := wrong()):
            raise ClusterError(f"while waiting for {what}:\n" + "\n".join(found))
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{what}: not there after {seconds:.0f} s; `python3 -m dev.cluster logs PART` shows what parts say"
            )
        time.sleep(0.2)


def wait_until_ready(wanted: tuple[Node, ...]) -> None:
    wait_for("the control plane", lambda: STATUS.is_file() and read_whole(STATUS)["started"])
    say("control plane is ready")
    for node in wanted:
        wait_for(f"{node.name}'s containerd", partial(_has_containerd, node))
    images.load_archive(images.pause_archive(), wanted)
    _make_service_account()
    for node in wanted:
        _start_own_pod(node)
    for node in wanted:
        wait_for(f"{node.name} to be Ready", partial(_node_is_ready, node))
    say("the nodes are Ready")
    for node in wanted:
        _end_own_pod(node)
        add_gpus(node)
    say(f"a pod of its own ran to completion on every node, DNS answered it; each node has {GPUS_PER_NODE} GPUs")


def _has_containerd(node: Node) -> bool:
    return "kubelet" in read_status(node.settings / "status.json")


def _node_is_ready(node: Node) -> bool:
    try:
        status = client().request("GET", f"/api/v1/nodes/{node.name}")["status"]
    except (OSError, ApiError):
        return False
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in status["conditions"])


def _start_own_pod(node: Node) -> None:
    """Start a test pod that resolves the API server's Service: its success proves runtime, network and DNS."""
    container = {"name": "check", "image": PAUSE_IMAGE, "args": ["resolve", "kubernetes.default"]}
    spec: dict[str, Any] = {"nodeName": node.name, "restartPolicy": "OnFailure", "containers": [container]}
    spec["tolerations"] = [{"operator": "Exists"}]
    spec["automountServiceAccountToken"] = False
    body = {"metadata": {"name": _own_pod(node)}, "spec": spec}

    with _unless_there():
        client().request("POST", _SYSTEM_PODS, body)


def _make_service_account() -> None:
    """Create the default service account before the controller manager does: pods are rejected without it."""
    with _unless_there():
        client().request("POST", "/api/v1/namespaces/kube-system/serviceaccounts", {"metadata": {"name": "default"}})


@contextmanager
def _unless_there() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.code != 409:
            raise


def _own_pod(node: Node) -> str:
    return f"self-check-{node.name}"


def _end_own_pod(node: Node) -> None:
    path = f"{_SYSTEM_PODS}/{_own_pod(node)}"

    def succeeded() -> bool:
        try:
            return bool(client().request("GET", path)["status"]["phase"] == "Succeeded")
        except (OSError, ApiError):
            return False

    wait_for(f"a pod on {node.name} to run and to be answered by DNS", succeeded)
    client().request("DELETE", f"{path}?gracePeriodSeconds=0")
