"""Who of the cluster listens for connections, and where."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from devcluster.layout import HOST_ADDRESS, HOST_INTERFACE, MONITORING_LOCK
from devcluster.state import current_nodes, supervisor_pid

# Parts that somebody else may have started: as a service, say.
_NAMES = re.compile(r"etcd|kube|containerd|dnsmasq|prometheus")


def listeners() -> set[tuple[str, str]]:
    """Name and address of each: of all that the supervisors have started, and of what is called as a part is."""
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
    parents = _parents()
    for line in said.splitlines():
        address = line.split()[4]
        for name, pid in re.findall(r'\("([^"]*)",pid=(\d+),', line):
            if _NAMES.match(name) or _descends(int(pid), supervisors, parents):
                yield name, address


def _parents() -> dict[int, int]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(") ")[2].split()[1])
    return found


def _descends(pid: int, ancestors: Collection[int], parents: dict[int, int]) -> bool:
    while pid and pid not in ancestors:
        pid = parents.get(pid, 0)
    return pid != 0
