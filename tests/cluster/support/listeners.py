"""Who of the cluster listens for connections, and where."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dev.cluster.layout import HOST_ADDRESS, HOST_INTERFACE, MONITORING_LOCK
from dev.cluster.state import current_nodes, supervisor_pid

# Parts that somebody else may have started: an installation as a service, say.
_NAMES = re.compile(r"etcd|kube|containerd|dnsmasq|prometheus")


class Process(NamedTuple):
    parent: int
    # In ticks since the machine was booted.
    started: int


def listeners() -> set[tuple[str, str]]:
    """Name and address of each: of all that the supervisors have started, and of services that came with them."""
    supervisors = {pid for pid in (supervisor_pid(), supervisor_pid(MONITORING_LOCK)) if pid is not None}
    enter = [["ip", "netns", "exec", node.network_namespace] for node in current_nodes()]
    return {each for words in ([], *enter) for each in listening(supervisors, *words)}


def elsewhere(found: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those on other addresses than loopback, the machine's end of the fabric and the nodes' own."""
    own = {HOST_ADDRESS, *(node.address for node in current_nodes())}
    local = re.compile(rf"127\.|\[::1\]|\[fe80::[0-9a-f:]+\]%{HOST_INTERFACE}:")
    return [each for each in sorted(found) if each[1].rpartition(":")[0] not in own and not local.match(each[1])]


def listening(supervisors: Collection[int], *enter: str) -> Iterator[tuple[str, str]]:
    """Those of one network namespace."""
    said = subprocess.run([*enter, "ss", "-Hltnup"], text=True, capture_output=True, check=True).stdout
    processes = _processes()
    for line in said.splitlines():
        address = line.split()[4]
        for name, pid in re.findall(r'\("([^"]*)",pid=(\d+),', line):
            if is_ours(int(pid), name, supervisors, processes, _BEFORE):
                yield name, address


def is_ours(
    pid: int,
    name: str,
    supervisors: Collection[int],
    processes: Mapping[int, Process],
    before: Collection[tuple[int, int]],
) -> bool:
    """Who descends from a supervisor, and who is called as a part is and was not there before these tests."""
    process = processes.get(pid)
    if process is not None and _NAMES.match(name) and (pid, process.started) not in before:
        return True
    while process is not None and pid not in supervisors:
        pid = process.parent
        process = processes.get(pid)
    return process is not None


def _processes() -> dict[int, Process]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(") ")[2].split()
            found[int(stat.parent.name)] = Process(int(fields[1]), int(fields[19]))
    return found


# Tests are collected, and so this is read, before any of them starts a cluster. A number alone may come again.
_BEFORE = {(pid, process.started) for pid, process in _processes().items()}
