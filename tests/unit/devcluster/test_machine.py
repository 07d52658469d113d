"""What `up` changes on the machine, and what `down` restores."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import pytest

from dev.cluster import cgroups, machine, network
from dev.cluster.layout import FABRIC_NAMESPACE, HOST_INTERFACE, NODES_OWN, VOLUMES
from dev.cluster.shell import ClusterError
from dev.cluster.versions import DEBIAN


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands run on a machine with overlay loaded but not br_netfilter."""
    ran: list[str] = []

    def run(argv: Sequence[str], **_: object) -> str:
        ran.append(" ".join(argv))
        if "--dry-run" not in argv and argv[0] == "modprobe":
            (tmp_path / "bridge-nf-call-iptables").touch()
        return ""

    (tmp_path / "modules" / "overlay").mkdir(parents=True)
    monkeypatch.setattr(machine, "_SYSTEM_MODULES", tmp_path / "modules")
    monkeypatch.setattr(machine, "_BRIDGES", tmp_path / "net")
    monkeypatch.setattr(machine, "_BRIDGE_FILTER", tmp_path / "bridge-nf-call-iptables")
    monkeypatch.setattr(machine, "LOADED_MODULES", tmp_path / "modules.json")
    monkeypatch.setattr(machine, "run", run)
    return ran


def test_modules_that_were_not_loaded_before_are_unloaded(commands: list[str]) -> None:
    machine.load_modules()
    machine.unload_modules()
    assert commands == ["modprobe --all br_netfilter overlay", "rmmod br_netfilter"]


def test_a_kernel_that_refuses_the_module_is_reported(commands: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "run", lambda argv: commands.append(" ".join(argv)))
    with pytest.raises(ClusterError, match=r"the kernel has no br_netfilter, .* load that module"):
        machine.load_modules()
    machine.unload_modules()
    assert commands == ["modprobe --all br_netfilter overlay", "rmmod br_netfilter"]


def test_modules_that_were_there_stay(commands: list[str], tmp_path: Path) -> None:
    (tmp_path / "bridge-nf-call-iptables").touch()
    machine.load_modules()
    machine.unload_modules()
    assert commands == []


def test_modules_of_before_a_restart_of_the_machine_stay(
    commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.load_modules()
    monkeypatch.setattr(machine, "boot_id", lambda: "another")
    machine.unload_modules()
    (tmp_path / "modules.json").write_text(json.dumps(["br_netfilter"]))  # as written before
    machine.unload_modules()
    assert commands == ["modprobe --all br_netfilter overlay"]


def test_a_module_that_is_in_use_stays(commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(argv: Sequence[str]) -> str:
        commands.append(" ".join(argv))
        raise ClusterError("Module is in use")

    machine.remember(tmp_path / "modules.json", ["br_netfilter", "overlay"])
    monkeypatch.setattr(machine, "run", refuse)
    machine.unload_modules()
    assert commands == ["rmmod br_netfilter", "rmmod overlay"]


def test_no_module_is_unloaded_beside_a_bridge_of_somebody_else(commands: list[str], tmp_path: Path) -> None:
    machine.remember(tmp_path / "modules.json", ["br_netfilter"])
    (tmp_path / "net" / "docker0" / "bridge").mkdir(parents=True)
    machine.unload_modules()
    assert commands == []


def test_namespaces_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [FABRIC_NAMESPACE, "memtune-node-1", "memtune-node-2"]
    ran: list[tuple[str, ...]] = []

    def ip(*words: str) -> str:
        ran.append(words)
        if words == ("netns", "list"):
            return "".join(f"{name} (id: 1)\n" for name in [*ours, "memtune-lab", "memtune-node-12", "other"])
        return "[]"

    monkeypatch.setattr(network, "_ip", ip)
    monkeypatch.setattr(network, "_is_mount", lambda _: False)
    network.remove_network()
    assert [words[2] for words in ran if words[:2] == ("netns", "delete")] == ours


def test_the_machines_interface_goes_while_nothing_else_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel deletes it some time after the namespace of its other end."""
    ran: list[tuple[str, ...]] = []

    def ip(*words: str) -> str:
        ran.append(words)
        if words == ("netns", "list"):
            return f"{FABRIC_NAMESPACE} (id: 0)\n"
        return json.dumps([{"ifname": HOST_INTERFACE}])

    monkeypatch.setattr(network, "_ip", ip)
    monkeypatch.setattr(network, "_is_mount", lambda _: False)
    network.remove_network()
    deleted = [words for words in ran if "delete" in words]
    assert deleted == [("link", "delete", HOST_INTERFACE), ("netns", "delete", FABRIC_NAMESPACE)]


@pytest.fixture
def suitable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that can run the cluster, whatever this one is."""
    (tmp_path / "os-release").write_text(f"VERSION_CODENAME={DEBIAN}\n")
    monkeypatch.setattr(machine, "_RELEASE", tmp_path / "os-release")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cgroups, "missing", list)
    monkeypatch.setattr(machine, "run", lambda _: "")


@pytest.mark.usefixtures("suitable")
def test_a_suitable_machine_can_run_it() -> None:
    assert machine.reason_it_cannot_run() == ""


@pytest.mark.usefixtures("suitable")
def test_a_root_without_the_right_to_namespaces_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(argv: Sequence[str]) -> str:
        assert argv[0] == "unshare"
        raise ClusterError("unshare: unshare failed: Operation not permitted")

    monkeypatch.setattr(machine, "run", refuse)
    reason = machine.reason_it_cannot_run()
    assert "CAP_SYS_ADMIN" in reason
    assert "\n" not in reason


@pytest.mark.usefixtures("suitable")
def test_another_architecture_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert machine.reason_it_cannot_run() == "devcluster makes images for x86_64 alone, and this machine is aarch64"


@pytest.mark.parametrize("hidden", ["/var/lib/jenkins/.cache", "/run/user/0", "/var/log"])
def test_a_cache_that_nodes_do_not_see_is_refused(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CACHE", Path(hidden) / "memtune" / "devcluster")
    with pytest.raises(ClusterError, match=f"the cache folder {hidden}/memtune/devcluster is below /.* XDG_CACHE_HOME"):
        machine.check_before_starting()


@pytest.mark.parametrize("hidden", ["/var/lib/jenkins/workspace", "/run/build"])
def test_a_checkout_that_nodes_do_not_see_is_refused(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CACHE", Path("/srv/cache"))
    monkeypatch.setattr(machine, "CHECKOUT", Path(hidden))
    with pytest.raises(ClusterError, match=f"^the checkout {hidden} is below /.*; move it to a folder elsewhere$"):
        machine.check_before_starting()


def test_volumes_are_where_every_node_finds_them() -> None:
    assert not any(VOLUMES.is_relative_to(own) for own in NODES_OWN)
