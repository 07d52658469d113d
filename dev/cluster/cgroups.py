"""Cgroups of the nodes' pods, version 1 and version 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dev.cluster.layout import CGROUP, Node

_ROOT = Path("/sys/fs/cgroup")
# The controllers kubelet and runc need; in version 2, devices and freezer are built in and cpuacct is part of cpu.
_VERSION_1 = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
_VERSION_2 = ("cpu", "cpuset", "memory", "io", "pids")


def missing() -> list[str]:
    """The controllers that this machine lacks."""
    if _is_version_2():
        return [name for name in _VERSION_2 if name not in _controllers(_ROOT)]
    return [name for name in _VERSION_1 if not (_ROOT / name).is_dir()]


def tops() -> Iterator[Path]:
    """The cluster's directories, one per hierarchy; none if there is no cluster."""
    return (top for hierarchy in _hierarchies() if (top := hierarchy / CGROUP).is_dir())


def make(node: Node) -> None:
    for hierarchy in _hierarchies():
        directory = hierarchy
        for name in node.cgroup.strip("/").split("/"):
            parent, directory = directory, directory / name
            _hand_down(parent)
            directory.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                # Version 1: empty in a new cgroup, which takes no process until it is set.
                if not _is_version_2() and (parent / setting).is_file():
                    (directory / setting).write_text((parent / setting).read_text())
        _hand_down(directory)


def are_busy() -> bool:
    """Whether a process of a pod is still there, including killed ones that have not ended yet."""
    return any(member.read_text() for top in tops() for member in top.glob("**/cgroup.procs"))


def remove() -> None:
    for top in tops():
        for directory, _, _ in os.walk(top, topdown=False):
            Path(directory).rmdir()


def _is_version_2() -> bool:
    return (_ROOT / "cgroup.controllers").is_file()


def _controllers(directory: Path) -> list[str]:
    return (directory / "cgroup.controllers").read_text().split()


def _hierarchies() -> list[Path]:
    """Version 2 has one hierarchy; version 1 has one per controller, with links for combined ones."""
    if _is_version_2():
        return [_ROOT]
    return [path for path in _ROOT.iterdir() if path.is_dir() and not path.is_symlink() and path.name != "unified"]


def _hand_down(directory: Path) -> None:
    """Enable all controllers for the children of a version 2 cgroup, as kubelet requires."""
    if _is_version_2():
        for controller in _controllers(directory):
            # Some cannot be enabled, such as cpu with real-time processes; kubelet reports what it lacks.
            with suppress(OSError):
                (directory / "cgroup.subtree_control").write_text(f"+{controller}")
