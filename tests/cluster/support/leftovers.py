"""What a cluster has left on the machine: everything that was not there before and belongs to nobody else."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dev.cluster import cgroups, machine, packages
from dev.cluster.layout import STATE, VOLUMES
from dev.cluster.versions import MONITORING_PACKAGES, RUNTIME_PACKAGES

# In the environment of every command from now on, and so of all that these start: who carries it is ours.
_MARK = f"MEMTUNE_TRACES={os.environ.setdefault('MEMTUNE_TRACES', uuid.uuid4().hex)}".encode()
# Whom an installation may have had started as services, by somebody who knows nothing of the mark.
_SERVICES = {*RUNTIME_PACKAGES, *MONITORING_PACKAGES}
_KERNEL_THREAD = 0x00200000
_FILES = (STATE, VOLUMES, packages._POLICY)


class Leftovers:
    def __init__(self) -> None:
        self._before = Counter(_seen())

    def left(self) -> list[str]:
        return sorted((Counter(_seen()) - self._before).elements())


def _seen() -> Iterator[str]:
    """Everything that is there, one line each; without what changes by itself, such as a lease's remaining time."""
    yield from (f"process {each}" for each in _processes())
    yield from (f"mount {line.split(' ', 3)[3]}" for line in Path("/proc/self/mountinfo").read_text().splitlines())
    yield from (f"interface {line.split()[1]}" for line in _said("ip", "-oneline", "link"))
    yield from (f"address {line.split()[1:4]}" for line in _said("ip", "-oneline", "address"))
    yield from (f"route {line}" for line in _said("ip", "-4", "route", "show", "table", "all"))
    yield from (f"network namespace {line.split()[0]}" for line in _said("ip", "netns", "list"))
    yield from (f"rule {line}" for line in _rules())
    yield from (f"sysctl {name} {(Path('/proc/sys') / name).read_text()}" for name in machine.KUBELET_SYSCTLS)
    # An image build, which is not undone, may have had overlay loaded.
    yield from (f"kernel module {name}" for name in ("br_netfilter",) if machine.is_loaded(name))
    yield from (f"cgroup {path}" for path in cgroups.tops())
    yield from (f"enabled {path}" for path in packages.ENABLED.glob("**/*") if path.is_symlink())
    yield from (f"file {path}" for path in _FILES if path.exists())


def _said(*argv: str) -> list[str]:
    return subprocess.run(argv, text=True, capture_output=True, check=True).stdout.splitlines()


def _rules() -> list[str]:
    """Rules and chains of one's own; a table that was only looked at shows its empty standard chains from then on."""
    programs = [name for name in ("iptables-save", "ip6tables-save") if shutil.which(name)]
    lines = [f"{name} {line}" for name in programs for line in _said(name)]
    return [line for line in lines if " -A " in line or line.partition(" :")[2].partition(" ")[2].startswith("- ")]


def _processes() -> Iterator[str]:
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            name, fields = (directory / "stat").read_text().split("(", 1)[1].rsplit(") ", 1)
            state, flags, started = (fields.split()[place] for place in (0, 6, 19))
            marked = _MARK in (directory / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked, or is none of ours: not even root may look
        if state != "Z" and not int(flags) & _KERNEL_THREAD and (marked or name in _SERVICES):
            yield f"{directory.name} {name}, started at {started}"
