"""What `up` and `down` do, step by step, and how the state of a cluster is told."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from devcluster import binaries, images, machine, network, packages
from devcluster.api import ApiError, client
from devcluster.certificates import make_certificates
from devcluster.layout import (
    CACHE,
    CHECKOUT,
    GPUS_PER_NODE,
    KUBECONFIG,
    LOGS,
    STATE,
    STATUS,
    SUPERVISOR_LOCK,
    Node,
    nodes,
)
from devcluster.node import cgroups_are_busy, make_cgroups, remove_cgroups, write_node_settings
from devcluster.shell import ClusterError
from devcluster.supervisor import dead_parts, is_alive, part_pids, read_status
from devcluster.versions import BUILD_PACKAGES, KUBERNETES, PAUSE_IMAGE, RUNTIME_PACKAGES

_SYSTEM_PODS = "/api/v1/namespaces/kube-system/pods"

_began = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _began:5.1f} s] {text}", flush=True)


@contextmanager
def alone() -> Iterator[None]:
    """Only one `up`, `down` or `load` at a time, and so only one build."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise ClusterError(
                f"another devcluster command is at work (process {lock.read().strip()}): wait until it has ended"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def supervisor_pid() -> int | None:
    """The running supervisor. It holds its lock as long as it lives, so a recycled process number fools nobody."""
    if not SUPERVISOR_LOCK.is_file():
        return None
    with SUPERVISOR_LOCK.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(lock.read())
    return None


def current_nodes() -> tuple[Node, ...]:
    return nodes(sum(1 for name in read_status(STATUS) if name.startswith("node-")))


def problems() -> list[str]:
    """What is wrong with the cluster that was started; empty when every part is alive."""
    found = dead_parts(STATUS, LOGS)
    for node in current_nodes():
        found += [f"on {node.name}: {problem}" for problem in dead_parts(node.settings / "status.json", node.log)]
    if supervisor_pid() is None:
        found.append("the supervisor is dead, and every part with it")
    return found


def up(asked: int | None) -> None:
    if STATE.exists():
        _reuse(asked)
        return
    count = asked or 1
    _prepare()
    machine.check_before_starting()
    network.check_subnets_are_free()
    say(f"starting Kubernetes {KUBERNETES} with {count} node{'s' if count > 1 else ''}")
    _start(nodes(count))
    _wait_until_ready(nodes(count))
    say(f"ready; export KUBECONFIG={KUBECONFIG}")


def _reuse(asked: int | None) -> None:
    if found := problems():
        raise ClusterError("the cluster is half dead; run `devcluster down`, then `up` again\n" + "\n".join(found))
    running = len(current_nodes())
    if asked not in (None, running):
        raise ClusterError(f"a cluster with {running} node(s) is up, not {asked}: run `devcluster down` first")
    _wait_until_ready(current_nodes())
    say(f"already up; export KUBECONFIG={KUBECONFIG}")


def _prepare() -> None:
    needed = dict(RUNTIME_PACKAGES)
    if not binaries.are_built():
        machine.check_before_building()
        needed |= BUILD_PACKAGES
    if absent := packages.missing(needed):
        say(f"installing {', '.join(absent)}")
        packages.install(absent, CACHE / "apt.log")
    if not binaries.are_built():
        say(f"building Kubernetes {KUBERNETES} (once, some minutes; log: {CACHE / 'build.log'})")
        binaries.build()
    say("base image")
    images.base_archive()


def _start(wanted: tuple[Node, ...]) -> None:
    LOGS.mkdir(parents=True)
    machine.save_sysctls()
    make_certificates(wanted)
    network.make_network(wanted)
    for node in wanted:
        make_cgroups(node)
        write_node_settings(node)
    with (LOGS / "supervisor.log").open("w") as log:
        subprocess.Popen(
            [sys.executable, "-m", "devcluster.main_supervisor", str(len(wanted))],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(what: str, is_there: Callable[[], bool], seconds: float = 120) -> None:
    """Wait, and stop at once when a part dies meanwhile."""
    deadline = time.monotonic() + seconds
    while not is_there():
        if SUPERVISOR_LOCK.is_file() and (found := problems()):
            raise ClusterError(f"while waiting for {what}:\n" + "\n".join(found))
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not there after {seconds:.0f} s; `devcluster logs PART` shows what parts say")
        time.sleep(0.2)


def _wait_until_ready(wanted: tuple[Node, ...]) -> None:
    _wait("the control plane", lambda: STATUS.is_file() and json.loads(STATUS.read_text())["started"])
    say("control plane is ready")
    for node in wanted:
        _wait(f"{node.name}'s containerd", partial(_has_containerd, node))
    images.load_archive(images.pause_archive(), wanted)
    for node in wanted:
        _wait(f"{node.name} to be Ready", partial(_node_is_ready, node))
        _add_gpus(node)
        say(f"{node.name} is Ready with {GPUS_PER_NODE} GPUs")
    for node in wanted:
        _start_own_pod(node)
    for node in wanted:
        _end_own_pod(node)
    say("a pod of its own ran to completion on every node, and DNS answered it")


def _has_containerd(node: Node) -> bool:
    return "kubelet" in read_status(node.settings / "status.json")


def _node_is_ready(node: Node) -> bool:
    try:
        status = client().request("GET", f"/api/v1/nodes/{node.name}")["status"]
    except (OSError, ApiError):
        return False
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in status["conditions"])


def _add_gpus(node: Node) -> None:
    patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS_PER_NODE)}]
    client().request("PATCH", f"/api/v1/nodes/{node.name}/status", patch, "application/json-patch+json")


def _start_own_pod(node: Node) -> None:
    """A pod that asks DNS for the API server's Service and ends: runtime, network and DNS are right if it succeeds."""
    container = {"name": "check", "image": PAUSE_IMAGE, "args": ["resolve", "kubernetes.default"]}
    spec: dict[str, Any] = {"nodeName": node.name, "restartPolicy": "OnFailure", "containers": [container]}
    spec["tolerations"] = [{"operator": "Exists"}]
    spec["automountServiceAccountToken"] = False
    body = {"metadata": {"name": _own_pod(node)}, "spec": spec}

    def created() -> bool:
        try:
            client().request("POST", _SYSTEM_PODS, body)
        except ApiError as error:
            # Refused until the controller manager has made the namespace's default service account.
            return error.code == 409
        return True

    _wait(f"a pod on {node.name} to be accepted", created)


def _own_pod(node: Node) -> str:
    return f"self-check-{node.name}"


def _end_own_pod(node: Node) -> None:
    path = f"{_SYSTEM_PODS}/{_own_pod(node)}"

    def succeeded() -> bool:
        return bool(client().request("GET", path)["status"]["phase"] == "Succeeded")

    _wait(f"a pod on {node.name} to run and to be answered by DNS", succeeded)
    client().request("DELETE", f"{path}?gracePeriodSeconds=0")


def down() -> None:
    if not STATE.exists():
        say("no cluster is up")
    pid = supervisor_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    _wait_until_dead()
    if shutil.which("ip") is not None:
        network.remove_network()
    remove_cgroups()
    machine.restore_sysctls()
    if STATE.exists():
        shutil.rmtree(STATE)
        say("the cluster is gone")


def _wait_until_dead(seconds: float = 30) -> None:
    """The kernel ends the parts when their supervisor has gone, and takes a moment for a node full of pods."""
    pids = part_pids(STATUS).values()
    deadline = time.monotonic() + seconds
    while supervisor_pid() is not None or cgroups_are_busy() or any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise ClusterError(f"processes of the cluster are still there {seconds:.0f} s after they were killed")
        time.sleep(0.1)


def log_of(part: str) -> Path:
    """The log of a part by its name: `etcd`, `node-1`, `node-1/kubelet`, ..."""
    logs = {path.stem: path for path in LOGS.glob("*.log")}
    for node in current_nodes():
        logs |= {f"{node.name}/{path.stem}": path for path in node.log.glob("*.log")}
    if part not in logs:
        known = ", ".join(sorted(logs)) or "none, no cluster is up"
        raise ClusterError(f"there is no log of `{part}`; there are: {known}")
    return logs[part]
