"""Preflight checks of the machine (kernel, privileges, disk, ports), and kernel settings that `down` restores."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dev.cluster import cgroups, disk
from dev.cluster.disk import GIB, Need
from dev.cluster.layout import CACHE, CHECKOUT, HOST_PORTS, LOADED_MODULES, LOOPBACK_PORTS, NODES_OWN, STATE, SYSCTLS
from dev.cluster.shell import BrokenStateError, ClusterError, read_whole, run, say, write_new
from dev.cluster.supervisor import boot_id
from dev.cluster.versions import DEBIAN

# Test images and containers; sources, Go cache and binaries; a layer and its image.
STATE_BYTES = 4 * GIB
BUILD_BYTES = 8 * GIB
BASE_IMAGE_BYTES = GIB

_RELEASE = Path("/etc/os-release")
# The images made here are for amd64.
_ARCHITECTURE = "x86_64"
# For Services inside a node and for container file systems.
_MODULES = ("br_netfilter", "overlay")
_SYSTEM_MODULES = Path("/sys/module")
_BRIDGES = Path("/sys/class/net")
_SYSCTLS = Path("/proc/sys")
_BRIDGE_FILTER = _SYSCTLS / "net/bridge/bridge-nf-call-iptables"
_NO_BRIDGE_FILTER = (
    "the kernel has no br_netfilter, and without it Services do not answer pods of the same node: load that module, or "
    "boot a kernel that has it"
)
# Machine-wide sysctls that kubelet sets; `down` restores them.
KUBELET_SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")


def reason_it_cannot_run() -> str:
    """Why this machine can never run the cluster, else empty."""
    if platform.system() != "Linux":
        return f"devcluster needs Linux, and this is {platform.system()}"
    if (found := platform.machine()) != _ARCHITECTURE:
        return f"devcluster makes images for {_ARCHITECTURE} alone, and this machine is {found}"
    if not _RELEASE.is_file() or f"VERSION_CODENAME={DEBIAN}" not in _RELEASE.read_text().splitlines():
        return f"devcluster builds Kubernetes from Debian {DEBIAN}'s source package, and this is another system"
    if os.geteuid() != 0:
        return "devcluster makes network namespaces and mounts: run it as root"
    if not _may_unshare():
        return (
            "devcluster makes network namespaces and mounts, and root may not do that here: in a container, give it "
            "CAP_SYS_ADMIN (`--privileged`)"
        )
    if missing := cgroups.missing():
        return f"this machine lacks the cgroup controllers {', '.join(missing)}, which kubelet and runc need"
    return ""


def _may_unshare() -> bool:
    """Whether this process may create namespaces: root in a container may not."""
    try:
        run(["unshare", "--mount", "--pid", "--net", "--fork", "true"])
    except ClusterError:
        return False
    return True


def check_disk(directory: Path, needed_bytes: int, purpose: str) -> None:
    check_disks([Need(directory, needed_bytes, purpose)])


def check_disks(needs: Iterable[Need]) -> None:
    if lacking := disk.lacking(needs):
        raise ClusterError(lacking)


def check_before_starting(builds: Iterable[Need] = ()) -> None:
    """Check that a cluster can be started after these builds."""
    _check_nodes_see(
        CACHE,
        f"the cache folder {CACHE}",
        "Kubernetes' commands would not be found there; set XDG_CACHE_HOME to a folder elsewhere",
    )
    _check_nodes_see(
        CHECKOUT,
        f"the checkout {CHECKOUT}",
        "devcluster itself would not be found there; move it to a folder elsewhere",
    )
    check_disks([Need(STATE, STATE_BYTES, "the cluster"), *builds])
    check_ports_are_free(LOOPBACK_PORTS)
    check_nobody_listens_everywhere(HOST_PORTS)
    if not _BRIDGE_FILTER.exists() and not _can_load("br_netfilter"):
        raise ClusterError(_NO_BRIDGE_FILTER)


def _check_nodes_see(folder: Path, called: str, so: str) -> None:
    for own in NODES_OWN:
        if folder.resolve().is_relative_to(own.resolve()):
            raise ClusterError(f"{called} is below {own}, of which each node has its own: {so}")


def check_ports_are_free(ports: Mapping[str, int]) -> None:
    for owner, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise ClusterError(
                    f"127.0.0.1:{port}, the port of {owner}, is in use: `ss -ltnp sport = :{port}` shows by whom; "
                    "end that program or change the port in dev/cluster/layout.py"
                ) from error


def check_nobody_listens_everywhere(ports: Mapping[str, int]) -> None:
    """Check that no process listens on these ports on all addresses, which includes those created later."""
    taken = _ports_on_all_addresses()
    for owner, port in ports.items():
        if port in taken:
            raise ClusterError(
                f"port {port}, which {owner} needs, is in use on all addresses: `ss -lntup sport = :{port}` shows by "
                "whom; end that program or let it listen on addresses of its own"
            )


def _ports_on_all_addresses() -> set[int]:
    """TCP and UDP ports, as the kernel lists them."""
    found = set()
    for protocol, listening in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        table = Path("/proc/net") / protocol
        for line in table.read_text().splitlines()[1:] if table.is_file() else ():
            address, port = line.split()[1].split(":")
            if line.split()[3] == listening and not address.strip("0"):
                found.add(int(port, 16))
    return found


def remember_sysctls() -> None:
    remember(SYSCTLS, {name: (_SYSCTLS / name).read_text() for name in KUBELET_SYSCTLS})


def restore_sysctls() -> None:
    for name, value in (_remembered(SYSCTLS) or {}).items():
        (_SYSCTLS / name).write_text(value)


def load_modules() -> None:
    """Record the missing modules, then load them, so that a killed `up` has loaded nothing unrecorded."""
    if _BRIDGE_FILTER.exists():
        return
    remember(LOADED_MODULES, [name for name in _MODULES if not is_loaded(name)])
    with suppress(ClusterError):
        run(["modprobe", "--all", *_MODULES])
    if not _BRIDGE_FILTER.exists():
        raise ClusterError(_NO_BRIDGE_FILTER)


def _can_load(module: str) -> bool:
    try:
        run(["modprobe", "--dry-run", module])
    except (OSError, ClusterError):
        return False
    return True


def unload_modules() -> None:
    """Unload the recorded modules, unless another bridge may need them, which rmmod does not check."""
    if any(_BRIDGES.glob("*/bridge")):
        return
    for name in _remembered(LOADED_MODULES) or ():
        with suppress(OSError, ClusterError):
            run(["rmmod", name])


def is_loaded(module: str) -> bool:
    return (_SYSTEM_MODULES / module).is_dir()


def remember(path: Path, before: object) -> None:
    """Record a setting of the machine from before the cluster, valid until a reboot."""
    write_new(path, json.dumps({"boot": boot_id(), "before": before}))


def _remembered(path: Path) -> Any:
    """The recorded setting; None if unreadable, since `down` must work anyway."""
    try:
        told = read_whole(path) if path.is_file() else {}
    except BrokenStateError:
        say(f"{path} is broken: what it would tell of the machine stays as the cluster has set it")
        return None
    # Older records have no boot id, and their cluster may still be up.
    return told.get("before") if isinstance(told, dict) and told.get("boot") == boot_id() else None
