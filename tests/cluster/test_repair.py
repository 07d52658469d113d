"""A cluster with something dead in it: `status` says what, `up` starts it anew."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from pods import GPU, Cluster, container, eventually, pod

from devcluster.layout import STATUS, nodes
from devcluster.node import process_one
from devcluster.shell import run
from devcluster.state import problems
from devcluster.supervisor import part_pids

NODE = nodes(2)[1]


def kill_kubelet() -> None:
    # Its number is the one it has inside the node.
    pid = part_pids(NODE.settings / "status.json")["kubelet"]
    run(["nsenter", f"--target={process_one(NODE)}", "--pid", "kill", "-KILL", str(pid)])


def kill_node() -> None:
    os.kill(process_one(NODE), signal.SIGKILL)


def kill_scheduler() -> None:
    os.kill(part_pids(STATUS)["kube-scheduler"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("kill", "said"),
    [
        (kill_kubelet, "on node-2: kubelet ended with signal SIGKILL"),
        (kill_node, "node-2 ended with"),
        (kill_scheduler, "kube-scheduler ended with signal SIGKILL"),
    ],
)
@pytest.mark.usefixtures("two_nodes")
def test_up_starts_anew_what_died(
    cluster: Cluster, devcluster: Callable[..., str], namespace: str, kill: Callable[[], None], said: str
) -> None:
    kill()
    (problem,) = eventually(problems, "the dead part to be noticed")
    assert problem.startswith(said)
    assert said in devcluster("up")
    assert problems() == []
    selector = {"kubernetes.io/hostname": NODE.name}
    body = pod("after", container("pass", resources={"limits": {GPU: "8"}}), nodeSelector=selector)
    assert cluster.finish(namespace, body).status.phase == "Succeeded"
