"""A dead cluster, or one with files broken by a full disk or a power cut: an error message, and `down` works."""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
from pathlib import Path
from typing import IO

import pytest

from dev.cluster import binaries, cli, cluster, layout, machine, network, node, state
from dev.cluster.layout import Node
from dev.cluster.shell import ClusterError
from dev.cluster.supervisor import boot_id, leave_running, part_pids


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a cluster whose supervisor is gone."""
    for module in (layout, state, cluster):
        monkeypatch.setattr(module, "STATE", tmp_path)
    monkeypatch.setattr(state, "NODE_COUNT", tmp_path / "nodes")
    monkeypatch.setattr(state, "STATUS", tmp_path / "status.json")
    monkeypatch.setattr(state, "LOGS", tmp_path / "log")
    monkeypatch.setattr(state.supervisor_pid, "__defaults__", (tmp_path / "supervisor.lock",))
    monkeypatch.setattr(cluster, "COMMAND_LOCK", tmp_path / "lock")
    monkeypatch.setattr(machine, "reason_it_cannot_run", lambda: "")
    monkeypatch.delenv("MEMTUNE_KUBECONFIG", raising=False)
    return tmp_path


@pytest.mark.parametrize("command", [["status"], ["kubeconfig"], ["load", "base"], ["prometheus"]])
def test_every_command_says_that_a_cluster_is_dead(
    command: list[str], dead: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (dead / "nodes").write_text("1")
    monkeypatch.setattr(sys, "argv", ["devcluster", *command])
    assert cli.main() == 1
    assert capsys.readouterr().err == (
        "devcluster: the cluster is dead: `python3 -m dev.cluster up` starts a new one\n"
        "the supervisor is dead, and every part with it\n"
    )


def test_a_process_that_reads_the_status_is_no_supervisor(tmp_path: Path) -> None:
    lock = tmp_path / "supervisor.lock"
    lock.write_text("42")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert state.supervisor_pid(lock) == 42
        # A look also holds the lock while it lasts.
        fcntl.flock(held, fcntl.LOCK_UN)
        taken: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            take = fcntl.flock

            def look(file: IO[str], how: int) -> None:
                take(file, how)
                if not taken:
                    taken.append(how)
                    assert state.supervisor_pid(lock) is None

            patch.setattr(fcntl, "flock", look)
            assert state.supervisor_pid(lock) is None
        assert taken


@pytest.mark.parametrize(("log", "said"), [("", ""), ("no room\n", "; the end of its log:\n  no room")])
def test_a_dead_supervisor_is_reported_with_its_last_output(log: str, said: str, dead: Path) -> None:
    (dead / "log").mkdir()
    (dead / "log" / "supervisor.log").write_text(log)
    assert state.problems() == [f"the supervisor is dead, and every part with it{said}"]


@pytest.mark.parametrize(("log", "said"), [("", ""), ("no room\n", "; the end of its log:\n  no room")])
def test_a_dead_supervisor_of_prometheus_is_reported(
    log: str, said: str, dead: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MONITORING_STATUS", dead / "monitoring.json")
    monkeypatch.setattr(state, "MONITORING_LOCK", dead / "monitoring.lock")
    (dead / "monitoring.json").write_text('{"parts": {}}')
    (dead / "log").mkdir()
    (dead / "log" / "monitoring.log").write_text(log)
    assert state.monitoring_problems() == [
        f"the supervisor of Prometheus and the dashboards is dead, and both with it{said}"
    ]


def test_a_supervisor_that_dies_at_once_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"ended with exit code 1; the end of its log:\n.*No module named"):
        leave_running("devcluster.nobody", log=tmp_path / "log", lock=tmp_path / "lock")


@pytest.fixture
def did(dead: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `up` would do on the dead cluster."""
    did: list[str] = []

    def down() -> None:
        did.append("down")
        shutil.rmtree(dead)

    monkeypatch.setattr(cluster, "down", down)
    for module, step in (
        (cluster, "_remove_unfinished"),
        (machine, "check_before_starting"),
        (cluster, "_needs"),
        (cluster, "_prepare"),
        (network, "check_subnets_are_free"),
        (cluster, "wait_until_ready"),
    ):
        monkeypatch.setattr(module, step, lambda *_: None)
    monkeypatch.setattr(cluster, "_start", lambda wanted: did.append(f"start {len(wanted)}"))
    return did


@pytest.mark.parametrize(("asked", "nodes"), [(None, 2), (3, 3)])
def test_remains_of_a_dead_cluster_are_ended_before_a_new_one_starts(
    asked: int | None, nodes: int, dead: Path, did: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A power cut, or killing all processes, leaves files, interfaces and namespaces."""
    (dead / "nodes").write_text("2")
    cluster.up(asked)
    assert did == ["down", f"start {nodes}"]
    said = capsys.readouterr().out
    assert "the last cluster is dead; ending what is left of it, and starting a new one" in said
    assert "the supervisor is dead, and every part with it" in said


@pytest.mark.parametrize("content", ["", "\0\0\0"])
@pytest.mark.parametrize(
    ("name", "asked", "nodes"), [("nodes", None, 1), ("nodes", 3, 3), ("status.json", None, 2), ("status.json", 3, 3)]
)
def test_remains_with_broken_files_are_ended_before_a_new_cluster_starts(
    name: str,
    asked: int | None,
    nodes: int,
    content: str,
    dead: Path,
    did: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (dead / "nodes").write_text("2")
    (dead / name).write_text(content)
    cluster.up(asked)
    assert did == ["down", f"start {nodes}"]
    assert "its files are broken, as a power cut leaves them" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["status"], ["kubeconfig"], ["load", "base"]])
@pytest.mark.parametrize("name", ["nodes", "status.json"])
@pytest.mark.parametrize("content", ["", "\0\0\0"])
def test_a_broken_file_of_the_state_is_a_sentence(
    name: str,
    content: str,
    command: list[str],
    dead: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (dead / name).write_text(content)
    monkeypatch.setattr(sys, "argv", ["devcluster", *command])
    assert cli.main() == 1
    said = capsys.readouterr().err
    assert said.startswith(f"devcluster: {dead / name} is broken (")
    assert said.endswith("run `python3 -m dev.cluster down`, then `python3 -m dev.cluster up`\n")


@pytest.mark.parametrize("dead_part", [None, "ended with signal SIGKILL"])
@pytest.mark.parametrize("name", ["etcd", "node-1"])
def test_a_node_that_is_not_running_is_reported(
    name: str, dead_part: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pid beyond the maximum, which no process has.
    parts = {name: {"pid": 2**30, "dead": dead_part}}
    (tmp_path / "status.json").write_text(json.dumps({"boot": boot_id(), "parts": parts}))
    monkeypatch.setattr(node, "STATUS", tmp_path / "status.json")
    with pytest.raises(ClusterError, match=r"node-1 does not run: .* status` says why"):
        node.process_one(Node(1))


def test_commands_that_were_built_elsewhere_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "CACHE", tmp_path)
    with pytest.raises(ClusterError, match=rf"{tmp_path} has no Kubernetes .* HOME and XDG_CACHE_HOME"):
        binaries.command("pause")
    (tmp_path / f"{binaries._name()}-1").mkdir()
    assert binaries.command("pause") == str(tmp_path / f"{binaries._name()}-1" / "pause")


def test_a_broken_status_names_no_process(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("")
    assert part_pids(tmp_path / "status.json") == {}


def test_unreadable_sysctls_are_not_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "SYSCTLS", tmp_path / "sysctls.json")
    machine.restore_sysctls()
    (tmp_path / "sysctls.json").write_text("")
    machine.restore_sysctls()
    assert capsys.readouterr().out.count("sysctls.json is broken") == 1


@pytest.mark.parametrize(("boots", "after"), [(1, "0\n"), (2, "1\n")])
def test_sysctls_are_restored_unless_the_machine_was_rebooted(
    boots: int, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SYSCTLS", tmp_path / "sysctls.json")
    monkeypatch.setattr(machine, "_SYSCTLS", tmp_path)
    for name in machine.KUBELET_SYSCTLS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("0\n")
    monkeypatch.setattr(machine, "boot_id", lambda: "1")
    machine.remember_sysctls()
    (tmp_path / "vm/panic_on_oom").write_text("1\n")
    monkeypatch.setattr(machine, "boot_id", lambda: str(boots))
    machine.restore_sysctls()
    assert (tmp_path / "vm/panic_on_oom").read_text() == after


def test_state_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(path: Path, content: str) -> int:
        with path.open("w") as file:
            file.write(content[:1])
        raise OSError("no room")

    monkeypatch.setattr(machine, "SYSCTLS", tmp_path / "sysctls.json")
    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="no room"):
        machine.remember_sysctls()
    assert not (tmp_path / "sysctls.json").exists()
