"""The cluster as its user meets it: by kubectl."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from operator_process import Jobs
from pods import Cluster, container, pod

Kubectl = Callable[..., str]
_QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"


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


@pytest.mark.usefixtures("operator")
def test_the_quickstart_as_it_is_succeeds_and_is_described_as_a_story(
    kubectl: Kubectl, namespace: str, jobs: Jobs
) -> None:
    kubectl("--namespace", namespace, "apply", f"--filename={_QUICKSTART}")
    status = jobs.wait_for("quickstart", "Succeeded", "Failed", seconds=600)
    assert status["phase"] == "Succeeded", status["message"]
    assert [attempt["verdict"] for attempt in status["attempts"]] == ["device-oom", "succeeded"]
    assert 1 <= len(status["probes"]) <= 3
    told = kubectl("--namespace", namespace, "describe", "mtj", "quickstart")
    _, _, events = told.partition("Events:")
    story = [
        "is predicted to take",
        "probe 1 measures",
        " won: probe ",
        "attempt 1 ",
        "attempt 2 ",
        "trained to its end",
    ]
    assert [part for part in story if part not in events] == []
    places = [events.index(part) for part in story]
    assert places == sorted(places)
