"""Everything a cluster could leave on the machine, as comparable lines."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from devcluster.layout import STATE, VOLUMES
from devcluster.versions import KUBERNETES_COMMANDS

# Compared by name and not by number: other programs of the machine come and go meanwhile.
_PARTS = {"etcd", "containerd", "containerd-shim", "dnsmasq", "pause", "prometheus", "devcluster"}
_COMMANDS = {*KUBERNETES_COMMANDS, *_PARTS}


def _said(*argv: str) -> list[str]:
    return subprocess.run(argv, text=True, capture_output=True, check=True).stdout.splitlines()


def _rules() -> list[str]:
    """Rules and chains of one's own; a table that was only looked at shows its empty standard chains from then on."""
    if shutil.which("iptables-save") is None:
        return []  # no program that makes rules was here yet
    return [line for line in _said("iptables-save") if line.startswith("-A") or line.partition(" ")[2].startswith("- ")]


def _processes() -> list[str]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        names = {Path(word).name.split(".")[0].removesuffix("-runc-v2") for word in words[:3]}
        found += sorted(names & _COMMANDS)
    return sorted(found)


def traces() -> dict[str, list[str]]:
    return {
        "processes": _processes(),
        "mounts": sorted(line.split(" ", 1)[1].split(" ", 2)[2] for line in _lines("/proc/self/mountinfo")),
        "interfaces": _said("ip", "-brief", "link"),
        "addresses and routes": _said("ip", "-4", "-oneline", "address") + _said("ip", "route"),
        "network namespaces": _said("ip", "netns", "list"),
        "iptables": _rules(),
        "sysctls": [Path(f"/proc/sys/{name}").read_text() for name in ("vm/overcommit_memory", "kernel/panic")],
        "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob("*/memtune-devcluster")),
        "files": [str(path) for path in (STATE, VOLUMES) if path.exists()],
        "listeners": sorted({line.split()[3] for line in _said("ss", "-Hltn") if "10.213." in line}),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
