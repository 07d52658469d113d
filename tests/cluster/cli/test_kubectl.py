"""The cluster as its user meets it: by kubectl."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from operator_process import Jobs
from pods import Cluster, container, eventually, pod

from dev.cluster.shell import ClusterError
from memtune.api import GROUP
from tools.demo.on_cluster import DESCRIBE

Kubectl = Callable[..., str]
_QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.yaml"


@pytest.mark.xdist_group("nodes")
def test_nodes_are_listed_as_ready(kubectl: Kubectl, two_nodes: tuple[str, str]) -> None:
    rows = [line.split()[:2] for line in kubectl("get", "nodes", "--no-headers").splitlines()]
    assert rows == [[name, "Ready"] for name in two_nodes]


def test_a_pod_is_read_entered_and_deleted(kubectl: Kubectl, cluster: Cluster, namespace: str) -> None:
    script = "import signal; print('at work', flush=True); signal.pause()"
    cluster.create(namespace, pod("worker", container(script)))
    kubectl("--namespace", namespace, "wait", "--for=condition=Ready", "pod/worker", "--timeout=60s")
    # It is ready before it has said anything.
    eventually(lambda: kubectl("--namespace", namespace, "logs", "worker") == "at work\n", "the pod's log")
    entered = kubectl("--namespace", namespace, "exec", "worker", "--", "python3", "-c", "print(6 * 7)")
    assert entered == "42\n"
    kubectl("--namespace", namespace, "delete", "pod", "worker")
    assert cluster.gone(namespace, "worker")


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_the_unchanged_quickstart_succeeds_and_kubectl_describes_it(
    kubectl: Kubectl, namespace: str, jobs: Jobs
) -> None:
    kubectl("--namespace", namespace, "apply", f"--filename={_QUICKSTART}")
    status = jobs.wait_for("quickstart", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    assert [attempt["verdict"] for attempt in status["attempts"]] == ["device-oom", "succeeded"]
    assert 1 <= len(status["probes"]) <= 3
    output = kubectl("--namespace", namespace, "describe", "mtj", "quickstart")
    _, _, events = output.partition("Events:")
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


def forget_the_kind(cache: Path) -> None:
    """Make kubectl's list of kinds what it was before the CRD was installed."""
    for groups in cache.rglob("servergroups.json"):
        known = json.loads(groups.read_text())
        known["groups"] = [each for each in known["groups"] if each["name"] != GROUP]
        groups.write_text(json.dumps(known))
        shutil.rmtree(groups.parent / GROUP)


def test_the_demo_command_works_with_an_outdated_discovery_cache(
    kubectl: Kubectl, jobs: Jobs, namespace: str, tmp_path: Path
) -> None:
    jobs.apply(next(each for each in yaml.safe_load_all(_QUICKSTART.read_text()) if each["kind"] == "MemoryTunedJob"))
    kubectl("get", "memorytunedjobs", "--namespace", namespace)
    forget_the_kind(tmp_path / "kubectl-cache")
    with pytest.raises(ClusterError, match="the server doesn't have a resource type"):
        kubectl("--namespace", namespace, "describe", "mtj", "quickstart")
    kubectl("get", "memorytunedjobs", "--namespace", namespace)
    forget_the_kind(tmp_path / "kubectl-cache")
    assert "Kind:         MemoryTunedJob" in kubectl("--namespace", namespace, *DESCRIBE)
