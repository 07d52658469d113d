"""A cluster with something dead in it: `status` says what, `up` starts it anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from pods import GPU, Cluster, container, eventually, pod

from dev.cluster.layout import KUBECONFIG, STATUS, nodes
from dev.cluster.node import process_one
from dev.cluster.shell import run
from dev.cluster.state import current_nodes, problems, supervisor_pid
from dev.cluster.supervisor import part_pids

pytestmark = pytest.mark.alone
NODE = nodes(2)[1]
ROOT = Path(__file__).resolve().parents[3]
DEVCLUSTER = (sys.executable, "-m", "dev.cluster")


def kill_inside(name: str) -> None:
    """A part of a node, by the number that it has inside."""
    pid = part_pids(NODE.settings / "status.json")[name]
    run(["nsenter", f"--target={process_one(NODE)}", "--pid", "kill", "-KILL", str(pid)])


def kill_node() -> None:
    os.kill(process_one(NODE), signal.SIGKILL)


def kill_outside(name: str) -> None:
    os.kill(part_pids(STATUS)[name], signal.SIGKILL)


@pytest.mark.parametrize(
    ("kill", "said"),
    [
        (partial(kill_inside, "kubelet"), "on node-2: kubelet ended with signal SIGKILL"),
        pytest.param(
            partial(kill_inside, "containerd"),
            "on node-2: containerd ended with signal SIGKILL",
            marks=pytest.mark.slow,
        ),
        (kill_node, "node-2 ended with"),
        pytest.param(
            partial(kill_outside, "kube-scheduler"), "kube-scheduler ended with signal SIGKILL", marks=pytest.mark.slow
        ),
        pytest.param(
            partial(kill_outside, "kube-apiserver"), "kube-apiserver ended with signal SIGKILL", marks=pytest.mark.slow
        ),
        (partial(kill_outside, "etcd"), "etcd ended with signal SIGKILL"),
    ],
    ids=["kubelet", "containerd", "node", "scheduler", "apiserver", "etcd"],
)
@pytest.mark.usefixtures("two_nodes")
def test_status_names_dead_parts_and_up_restarts_them(
    cluster: Cluster, devcluster: Callable[..., str], namespace: str, kill: Callable[[], None], said: str
) -> None:
    kill()
    (problem,) = eventually(problems, "the dead part to be noticed")
    assert problem.startswith(said)
    code, told = _status()
    assert (code, told) == (1, f"{problem}\n")
    _, _, log = told.partition("; the end of its log:\n")
    assert log.strip()
    assert said in devcluster("up")
    assert problems() == []
    selector = {"kubernetes.io/hostname": NODE.name}
    body = pod("after", container("pass", resources={"limits": {GPU: "8"}}), nodeSelector=selector)
    assert cluster.finish(namespace, body).status.phase == "Succeeded"


def _status() -> tuple[int, str]:
    done = subprocess.run([*DEVCLUSTER, "status"], cwd=ROOT, text=True, capture_output=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.usefixtures("devcluster", "kubeconfig")
def test_the_second_of_two_concurrent_ups_is_refused() -> None:
    # On a busy machine one may be through before the other has begun.
    served, refused = next(pair for pair in map(_two_ups, range(10)) if pair[1].code)
    assert served.code == 0
    assert "already up" in served.said
    assert refused.said == (
        f"devcluster: another devcluster command is at work (process {served.pid}): wait until it has ended\n"
    )
    assert problems() == []


@pytest.mark.slow
@pytest.mark.replaces_the_cluster
@pytest.mark.usefixtures("own_cluster")
def test_a_cluster_without_its_supervisor_is_replaced(devcluster: Callable[..., str]) -> None:
    before, supervisor = current_nodes(), supervisor_pid()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: supervisor_pid() is None, "the supervisor to be gone")
    asked = subprocess.run([*DEVCLUSTER, "status"], cwd=ROOT, text=True, capture_output=True, check=False)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert "the supervisor is dead, and every part with it" in asked.stderr
    said = devcluster("up")
    assert "the last cluster is dead" in said
    assert said.endswith(f"ready; export KUBECONFIG={KUBECONFIG}")
    assert problems() == []
    assert current_nodes() == before


class _Up(NamedTuple):
    code: int
    pid: int
    said: str


def _two_ups(_: int) -> list[_Up]:
    """Both ended, the one that succeeded first."""
    ups = [
        subprocess.Popen([*DEVCLUSTER, "up"], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    said = [up.communicate(timeout=60)[0] for up in ups]
    return sorted(_Up(up.returncode, up.pid, each) for up, each in zip(ups, said, strict=True))
