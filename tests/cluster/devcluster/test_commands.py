"""The command's own promises: one clear sentence for what goes wrong, and a supervisor that sees everything."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from ipaddress import ip_address, ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from listeners import elsewhere, listeners, listening
from pods import Cluster, container, eventually, pod

from dev.cluster import cgroups, cli, cluster, machine, state
from dev.cluster.api import ApiError
from dev.cluster.dns import host_lines
from dev.cluster.monitoring import lifecycle, page
from dev.cluster.shell import ClusterError
from dev.cluster.state import current_nodes
from dev.cluster.supervisor import dead_parts, is_alive, part_pids

_ROOT = Path(__file__).resolve().parents[3]


def _main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["devcluster", *words])
    monkeypatch.delenv("MEMTUNE_KUBECONFIG", raising=False)
    return cli.main()


def test_a_second_command_at_the_same_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "COMMAND_LOCK", tmp_path / "lock")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        assert _main(monkeypatch, "up") == 1
    said = capsys.readouterr().err
    assert said.startswith("devcluster: another devcluster command is at work (process 4711)")


def test_dashboards_install_packages_and_start_alone_and_build_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "COMMAND_LOCK", tmp_path / "lock")
    monkeypatch.setattr(state, "check_it_lives", lambda: None)
    steps = []

    def step() -> None:
        try:
            with cluster.alone():
                steps.append("beside others")
        except ClusterError:
            steps.append("alone")

    for module, name in ((page, "provide"), (page, "build"), (lifecycle, "start")):
        monkeypatch.setattr(module, name, step)
    assert _main(monkeypatch, "dashboards") == 0
    assert steps == ["alone", "beside others", "alone"]


def test_devcluster_without_root_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert _main(monkeypatch, "up") == 1
    assert "run it as root" in capsys.readouterr().err
    assert _main(monkeypatch, "can-run") == cli.CANNOT_RUN


def test_another_cluster_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["devcluster", *words])
        code, said = cli.main(), capsys.readouterr()
        return code, said.out + said.err

    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setenv("MEMTUNE_KUBECONFIG", str(kubeconfig))
    # It need not be a machine that could run ours.
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert say("up") == (1, f"devcluster: MEMTUNE_KUBECONFIG names {kubeconfig}, and there is no such file\n")
    kubeconfig.touch()
    assert say("kubeconfig") == (0, f"{kubeconfig}\n")
    assert [say(word)[0] for word in ("up", "down", "can-run")] == [0, 0, 0]
    code, said = say("load", "base")
    assert code == 1
    assert said.startswith("devcluster: `load` is about the cluster that `up` starts")


def test_a_port_in_use_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(machine, "LOOPBACK_PORTS", {"etcd": port})
        with pytest.raises(ClusterError, match=f"127.0.0.1:{port}, the port of etcd, is in use"):
            machine.check_before_starting()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["v4", "v6"])
def test_a_port_in_use_on_all_addresses_is_reported(
    family: socket.AddressFamily, kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(family, kind) as taken:
        taken.bind(("", 0))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(machine, "LOOPBACK_PORTS", {})
        monkeypatch.setattr(machine, "HOST_PORTS", {"DNS": port})
        with pytest.raises(ClusterError, match=f"port {port}, which DNS needs, is in use on all addresses"):
            machine.check_before_starting()


def test_a_cluster_whose_start_failed_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes").write_text("2")
    monkeypatch.setattr(state, "NODE_COUNT", tmp_path / "nodes")
    monkeypatch.setattr(state, "STATUS", tmp_path / "status.json")
    monkeypatch.setattr(cluster, "STATE", tmp_path)
    monkeypatch.setattr(cluster, "supervisor_pid", lambda: 1)
    monkeypatch.setattr(cluster, "problems", lambda: ["etcd ended with exit code 1"])
    repaired: list[str] = []

    def repair(found: list[str]) -> None:
        repaired.extend(found)
        raise ClusterError("seen")

    monkeypatch.setattr(cluster, "_repair", repair)
    with pytest.raises(ClusterError, match="seen"):
        cluster.up(2)
    assert repaired == ["etcd ended with exit code 1"]


def test_recorded_processes_are_ignored_after_a_reboot(tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    told = {"boot": "another", "pid": 1, "started": True, "parts": {"etcd": {"pid": os.getpid(), "dead": None}}}
    status.write_text(json.dumps(told))
    assert part_pids(status) == {}


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/var/lib/x"), 1, "the disk is full (/var/lib/x, "),
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
            1,
            "Connection refused; `python3 -m dev.cluster status`",
        ),
        (TimeoutError("timed out"), 1, "timed out; `python3 -m dev.cluster status` says what is dead"),
        (ApiError(404, "no such pod"), 1, "the API server refused: 404: no such pod"),
        (KeyboardInterrupt(), cli.INTERRUPTED, "interrupted; run `up` or `down` again"),
    ],
)
def test_errors_are_reported_in_one_sentence(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fails)
    assert _main(monkeypatch, "up") == code
    assert said in capsys.readouterr().err


SUPERVISED = """
import sys
from pathlib import Path
from dev.cluster.supervisor import Part, Supervisor
logs = Path(sys.argv[1])
Supervisor(logs / "status.json").run([
    Part("lasting", ["sleep", "600"], logs / "lasting.log"),
    *(Part(f"short-{i}", ["sh", "-c", "echo out of luck; exit 7"], logs / f"short-{i}.log") for i in range(10)),
])
"""


def test_the_supervisor_names_the_dead_part_and_ends_the_others(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISED, str(tmp_path)], cwd=_ROOT)
    try:
        status = tmp_path / "status.json"
        # Ten, because one that ends while it is still being started is the one that is easily missed.
        ends = [f"short-{i} ended with exit code 7; the end of its log:\n  out of luck" for i in range(10)]
        eventually(lambda: dead_parts(status, tmp_path) == ends, "the dead parts")
        lasting = part_pids(status)["lasting"]
        supervisor.send_signal(signal.SIGHUP)
        eventually(
            lambda: (tmp_path / "short-9.log").read_text().count("luck") == 2, "the dead parts to be started anew"
        )
        assert part_pids(status)["lasting"] == lasting
        assert is_alive(lasting)
    finally:
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
    eventually(lambda: not is_alive(lasting), "the other part to die with its supervisor")


def test_dns_resolves_services_and_pods_of_headless_services() -> None:
    services = [
        {"metadata": {"name": "web", "namespace": "a"}, "spec": {"clusterIP": "10.215.0.9"}},
        {"metadata": {"name": "train", "namespace": "a"}, "spec": {"clusterIP": "None"}},
        {"metadata": {"name": "elsewhere", "namespace": "a"}, "spec": {"type": "ExternalName"}},
    ]
    pods = [{"ip": "10.214.1.2", "hostname": "rank-0"}, {"ip": "10.214.2.3"}]
    endpoints: list[dict[str, Any]] = [
        {"metadata": {"name": "web", "namespace": "a"}, "subsets": [{"addresses": [{"ip": "10.214.1.9"}]}]},
        {"metadata": {"name": "train", "namespace": "a"}, "subsets": [{"addresses": pods}]},
        {"metadata": {"name": "nobody", "namespace": "a"}},
    ]
    assert host_lines(services, endpoints) == [
        "10.214.1.2 rank-0.train.a.svc.cluster.local",
        "10.214.1.2 train.a.svc.cluster.local",
        "10.214.2.3 train.a.svc.cluster.local",
        "10.215.0.9 web.a.svc.cluster.local",
    ]


LISTENER = """
import socket, sys
with socket.create_server(("0.0.0.0", 0)):
    print("listens", flush=True)
    sys.stdin.read()
"""


def test_listeners_of_supervised_processes_are_found() -> None:
    # Whatever its name is, and however many processes are in between.
    command = ["sh", "-c", 'python3 -c "$0"; :', LISTENER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stdout.readline() == "listens\n"
        ours, others = set(listening({started.pid})), set(listening(set()))
        started.stdin.close()
    assert any(address.startswith("0.0.0.0:") for _, address in elsewhere(ours - others))


@pytest.mark.usefixtures("devcluster", "kubeconfig")
def test_parts_listen_on_loopback_and_the_bridge_alone() -> None:
    found = listeners()
    assert {name for name, _ in found} >= {
        "etcd",
        "kube-apiserver",
        "kube-scheduler",
        "kubelet",
        "containerd",
        "dnsmasq",
    }
    assert elsewhere(found) == []


@pytest.mark.usefixtures("devcluster")
def test_each_node_has_addresses_and_cgroups_of_its_own(cluster: Cluster, namespace: str) -> None:
    for node in current_nodes():
        cluster.create(namespace, pod(node.name, container("import time; time.sleep(600)"), nodeName=node.name))
    for node in current_nodes():
        running = cluster.wait_for_phase(namespace, node.name, "Running")
        assert ip_address(running.status.pod_ip) in ip_network(node.pods_subnet)
        groups = [(top.parent, group) for top in cgroups.tops() for group in top.glob(f"**/pod{running.metadata.uid}")]
        assert groups
        assert all(group.is_relative_to(root / node.cgroup.lstrip("/")) for root, group in groups)
    assert not any(
        ip_network(one.pods_subnet).overlaps(ip_network(other.pods_subnet))
        for one, other in combinations(current_nodes(), 2)
    )


@pytest.mark.xdist_group("devcluster")
@pytest.mark.usefixtures("devcluster", "kubeconfig")
def test_the_next_build_runs_in_parallel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    built = []
    monkeypatch.setattr(page, "provide", lambda: None)
    monkeypatch.setattr(page, "build", lambda: built.append("page"))
    assert _main(monkeypatch, "up", "--build", "operator", "page") == 0
    assert built == ["page"]
    said = capsys.readouterr().out
    assert "building the image of operator" in said
    assert "already up" in said
    with pytest.raises(SystemExit, match="2"):
        _main(monkeypatch, "up", "--build", "everything")
    assert "invalid choice: 'everything'" in capsys.readouterr().err
