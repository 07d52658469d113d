"""The nodes' cgroups, in a directory that looks like version 1 or 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.cluster import cgroups
from dev.cluster.layout import CGROUP, Node

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")


@pytest.fixture
def version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*CONTROLLERS, "unified"):
        (tmp_path / name).mkdir()
    for setting, value in (("cpuset.cpus", "0-1"), ("cpuset.mems", "0")):
        (tmp_path / "cpuset" / setting).write_text(value)
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    return tmp_path


def test_version_1_has_a_directory_for_each_controller(version_1: Path) -> None:
    assert cgroups.missing() == []
    cgroups.make(Node(1))
    assert all((version_1 / name / CGROUP / "node-1").is_dir() for name in CONTROLLERS)
    assert not (version_1 / "unified" / CGROUP).exists()
    assert (version_1 / "cpuset" / CGROUP / "node-1" / "cpuset.cpus").read_text() == "0-1"


def test_a_controller_that_is_not_mounted_is_missed(version_1: Path) -> None:
    (version_1 / "pids").rmdir()
    assert cgroups.missing() == ["pids"]


def test_version_2_hands_its_controllers_down_to_the_node(version_2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cgroups.missing() == []
    handed: list[Path] = []
    monkeypatch.setattr(cgroups, "_hand_down", handed.append)
    cgroups.make(Node(1))
    assert handed == [version_2, version_2 / CGROUP, version_2 / CGROUP / "node-1"]


def test_version_2_hands_down_each_of_its_controllers(version_2: Path) -> None:
    (version_2 / "cgroup.controllers").write_text("pids\n")
    cgroups._hand_down(version_2)
    assert (version_2 / "cgroup.subtree_control").read_text() == "+pids"


def test_version_2_without_a_controller_misses_it(version_2: Path) -> None:
    (version_2 / "cgroup.controllers").write_text("cpuset cpu io pids\n")
    assert cgroups.missing() == ["memory"]


def test_groups_are_busy_as_long_as_a_process_is_in_one(version_2: Path) -> None:
    assert not cgroups.are_busy()
    pod = version_2 / CGROUP / "node-1" / "pod"
    pod.mkdir(parents=True)
    (pod / "cgroup.procs").write_text("")
    assert not cgroups.are_busy()
    (pod / "cgroup.procs").write_text("12\n")
    assert cgroups.are_busy()


def test_created_groups_are_removed(version_2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_hand_down", lambda _: None)
    cgroups.make(Node(1))
    cgroups.remove()
    assert not (version_2 / CGROUP).exists()
