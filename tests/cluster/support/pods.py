"""What every cluster test needs: pods in a few words, waiting with an end, and the story of a namespace."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import pytest
from kubernetes import client
from kubernetes.stream import stream

from dev.cluster.versions import BASE_IMAGE

IMAGE = os.environ.get("MEMTUNE_TEST_IMAGE", BASE_IMAGE)
FOREIGN = bool(os.environ.get("MEMTUNE_KUBECONFIG"))
GPU = "nvidia.com/gpu"

# A limit is for what never happens. A machine that is slow and has much else to do takes several times as long.
_PATIENCE = 3

T = TypeVar("T")


def unsuitable(reason: str) -> NoReturn:
    """A cluster of somebody else's may lack what a test needs; ours never may."""
    if FOREIGN:
        pytest.skip(reason)
    pytest.fail(reason)


def eventually(probe: Callable[[], T], what: str, seconds: float = 60) -> T:
    """The first true answer of the probe, which takes at most so many seconds on a quiet machine.

    What takes longer is asked for less often: each answer takes a processor.
    """
    started = time.monotonic()
    while not (answer := probe()):
        waited = time.monotonic() - started
        if waited > _PATIENCE * seconds:
            raise AssertionError(f"{what}: not seen in {waited:.0f} s; last answer: {answer!r}")
        time.sleep(min(0.2 + waited / 20, 0.5))
    return answer


def container(script: str, name: str = "main", **more: Any) -> dict[str, Any]:
    """A container that runs a Python script."""
    return {"name": name, "image": IMAGE, "command": ["python3", "-c", script], **more}


def pod(name: str, *containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    # Pods that a test does not wait for must not hold up the end of its namespace.
    defaults = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {**defaults, "containers": list(containers), **spec},
    }


class Cluster:
    """The parts of the API that tests use."""

    def __init__(self, connection: client.ApiClient) -> None:
        self.connection = connection
        # Any: the client's types know neither plain dictionaries as bodies nor which answers are always there.
        self.core: Any = client.CoreV1Api(connection)
        self.rbac: Any = client.RbacAuthorizationV1Api(connection)
        self.coordination: Any = client.CoordinationV1Api(connection)

    def images_by_node(self) -> dict[str, set[str]]:
        return {
            node.metadata.name: {name for image in node.status.images or [] for name in image.names or []}
            for node in self.core.list_node().items
        }

    def lacks(self, image: str) -> list[str]:
        """The nodes that do not have an image."""
        return sorted(node for node, names in self.images_by_node().items() if image not in names)

    def gpus_by_node(self) -> dict[str, int]:
        return {node.metadata.name: int(node.status.capacity.get(GPU, 0)) for node in self.core.list_node().items}

    def accepts_pods(self, namespace: str) -> bool:
        """Whether the controllers have made what a pod needs: tried with a pod that the server does not keep."""
        try:
            self.core.create_namespaced_pod(namespace, pod("trial", container("pass")), dry_run="All")
        except client.ApiException as error:
            if error.status not in (403, 500):
                raise
            return False
        return True

    def create(self, namespace: str, body: dict[str, Any]) -> str:
        created: str = self.core.create_namespaced_pod(namespace, body).metadata.name
        return created

    def read(self, namespace: str, name: str) -> Any:
        return self.core.read_namespaced_pod(name, namespace)

    def wait_for_phase(self, namespace: str, name: str, *phases: str, seconds: float = 60) -> Any:
        def reached() -> Any:
            found = self.read(namespace, name)
            return found if found.status.phase in phases else None

        return eventually(reached, f"pod {name} to be {' or '.join(phases)}", seconds)

    def finish(self, namespace: str, body: dict[str, Any], seconds: float = 60) -> Any:
        """Create a pod and return it when it has ended."""
        return self.wait_for_phase(namespace, self.create(namespace, body), "Succeeded", "Failed", seconds=seconds)

    def log(self, namespace: str, name: str) -> str:
        text: str = self.core.read_namespaced_pod_log(name, namespace)
        return text

    def execute(self, namespace: str, name: str, command: list[str]) -> tuple[int, str]:
        """What `kubectl exec` does: the command's exit code and standard output."""
        call = self.core.connect_get_namespaced_pod_exec
        session = stream(call, name, namespace, command=command, stdout=True, _preload_content=False)
        try:
            session.run_forever(timeout=30)
            return session.returncode, session.read_stdout()
        finally:
            # Its own close() leaves the socket open when the server was the first to hang up.
            session.sock.shutdown()

    def lease_holder(self, namespace: str, name: str) -> str:
        """Who holds a Lease; empty while nobody does."""
        leases = self.coordination.list_namespaced_lease(namespace).items
        return next((lease.spec.holder_identity for lease in leases if lease.metadata.name == name), "")

    def gone(self, namespace: str, name: str) -> bool:
        return all(found.metadata.name != name for found in self.core.list_namespaced_pod(namespace).items)

    def story(self, namespace: str) -> str:
        """Events, pod states and logs, for whoever reads a failed test."""
        events = self.core.list_namespaced_event(namespace).items
        lines = [f"--- events of {namespace}", *(f"{e.involved_object.name} {e.reason}: {e.message}" for e in events)]
        for found in self.core.list_namespaced_pod(namespace).items:
            name, status = found.metadata.name, found.status
            lines.append(f"--- pod {name} on {found.spec.node_name}: {status.phase} {status.reason or ''}")
            states = (status.init_container_statuses or []) + (status.container_statuses or [])
            lines += [f"{s.name}: {s.state}\nlog: {self._log_or_reason(namespace, name, s.name)}" for s in states]
        return "\n".join(lines)

    def _log_or_reason(self, namespace: str, name: str, container_name: str) -> str:
        try:
            text: str = self.core.read_namespaced_pod_log(name, namespace, container=container_name, tail_lines=40)
        except client.ApiException as error:
            return f"(none: {error.reason})"
        return text


def uids_by_pod(cluster: Cluster, namespace: str) -> dict[str, set[str]]:
    """Every pod that was ever scheduled, by its name."""
    found = defaultdict(set)
    for event in cluster.core.list_namespaced_event(namespace, field_selector="reason=Scheduled").items:
        found[event.involved_object.name].add(event.involved_object.uid)
    return dict(found)
