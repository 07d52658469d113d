"""What this machine must be and must have free, asked before anything is touched."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from devcluster import cgroups, disk
from devcluster.disk import GIB, Need
from devcluster.layout import HOST_PORTS, LOOPBACK_PORTS, STATE, SYSCTLS
from devcluster.shell import ClusterError, run
from devcluster.versions import DEBIAN

# Images and containers of the tests; sources, Go's cache and the result of the build; a layer and the image made of it.
STATE_BYTES = 4 * GIB
BUILD_BYTES = 8 * GIB
BASE_IMAGE_BYTES = GIB

_BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
# What kubelet sets for the whole machine; `down` puts it back.
_KUBELET_SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")


def reason_it_cannot_run() -> str:
    """Why this machine can never run the cluster; empty when it can."""
    if platform.system() != "Linux":
        return f"devcluster needs Linux, and this is {platform.system()}"
    release = Path("/etc/os-release")
    if not release.is_file() or f"VERSION_CODENAME={DEBIAN}" not in release.read_text().splitlines():
        return f"devcluster builds Kubernetes from Debian {DEBIAN}'s source package, and this is another system"
    if os.geteuid() != 0:
        return "devcluster makes network namespaces and mounts: run it as root"
    if missing := cgroups.missing():
        return f"this machine lacks the cgroup controllers {', '.join(missing)}, which kubelet and runc need"
    return ""


def check_disk(directory: Path, needed_bytes: int, purpose: str) -> None:
    check_disks([Need(directory, needed_bytes, purpose)])


def check_disks(needs: Iterable[Need]) -> None:
    if lacking := disk.lacking(needs):
        raise ClusterError(lacking)


def check_before_starting(builds: Iterable[Need] = ()) -> None:
    """Whether a cluster can be started once these builds are through."""
    check_disks([Need(STATE, STATE_BYTES, "the cluster"), *builds])
    check_ports_are_free(LOOPBACK_PORTS)
    check_nobody_listens_everywhere(HOST_PORTS)
    if not _BRIDGE_FILTER.exists() and shutil.which("modprobe"):
        with suppress(ClusterError):
            run(["modprobe", "--all", "br_netfilter", "overlay"])
    if not _BRIDGE_FILTER.exists():
        raise ClusterError("the kernel has no br_netfilter: Services would not answer pods of the same node")


def check_ports_are_free(ports: Mapping[str, int]) -> None:
    for owner, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise ClusterError(
                    f"127.0.0.1:{port}, the port of {owner}, is in use: `ss -ltnp sport = :{port}` shows by whom; "
                    "end that program or change the port in devcluster/layout.py"
                ) from error


def check_nobody_listens_everywhere(ports: Mapping[str, int]) -> None:
    """The address of these ports is made only later; who listens on all addresses has that one, too."""
    taken = _ports_on_all_addresses()
    for owner, port in ports.items():
        if port in taken:
            raise ClusterError(
                f"port {port}, which {owner} needs, is in use on all addresses: `ss -lntup sport = :{port}` shows by "
                "whom; end that program or let it listen on addresses of its own"
            )


def _ports_on_all_addresses() -> set[int]:
    """Of TCP and UDP, as the kernel lists them."""
    found = set()
    for protocol, listening in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        table = Path("/proc/net") / protocol
        for line in table.read_text().splitlines()[1:] if table.is_file() else ():
            address, port = line.split()[1].split(":")
            if line.split()[3] == listening and not address.strip("0"):
                found.add(int(port, 16))
    return found


def save_sysctls() -> None:
    SYSCTLS.write_text(json.dumps({name: (Path("/proc/sys") / name).read_text() for name in _KUBELET_SYSCTLS}))


def restore_sysctls() -> None:
    if SYSCTLS.is_file():
        for name, value in json.loads(SYSCTLS.read_text()).items():
            (Path("/proc/sys") / name).write_text(value)
