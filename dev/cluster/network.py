"""The cluster network (fabric): a bridge in its own network namespace, with a veth pair to the machine and each node.

Nodes and the machine have static routes to all pod subnets, by which the machine reaches pods and Services. The machine
neither forwards nor masquerades: pods have no route to the outside.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

from dev.cluster.layout import (
    FABRIC_NAMESPACE,
    FABRIC_SUBNET,
    HOST_ADDRESS,
    HOST_INTERFACE,
    MOST_NODES,
    PODS_SUBNET,
    SERVICES_SUBNET,
    Node,
    nodes,
)
from dev.cluster.shell import ClusterError, run

_NAMESPACES = Path("/run/netns")


def _ip(*words: str, namespace: str = "") -> str:
    return run(["ip", *(["-n", namespace] if namespace else []), *words])


def check_subnets_are_free() -> None:
    ours = [ipaddress.ip_network(subnet) for subnet in (FABRIC_SUBNET, PODS_SUBNET, SERVICES_SUBNET)]
    for route in json.loads(_ip("-json", "-4", "route", "show") or "[]"):
        if route["dst"] == "default":
            continue
        theirs = ipaddress.ip_network(route["dst"])
        if taken := [subnet for subnet in ours if subnet.overlaps(theirs)]:
            raise ClusterError(
                f"the cluster's subnet {taken[0]} overlaps this machine's route to {theirs} over {route.get('dev')}; "
                "change the subnets in dev/cluster/layout.py or take that route away"
            )


def make_network(wanted: tuple[Node, ...]) -> None:
    _namespace(FABRIC_NAMESPACE)
    _ip("link", "add", "fabric", "type", "bridge", namespace=FABRIC_NAMESPACE)
    _ip("link", "set", "fabric", "up", namespace=FABRIC_NAMESPACE)
    _plug(HOST_INTERFACE, "machine")
    _ip("address", "add", f"{HOST_ADDRESS}/24", "dev", HOST_INTERFACE)
    _ip("link", "set", HOST_INTERFACE, "up")
    for node in wanted:
        _namespace(node.network_namespace)
        _plug("eth0", node.name, namespace=node.network_namespace)
        _ip("address", "add", f"{node.address}/24", "dev", "eth0", namespace=node.network_namespace)
        _ip("link", "set", "eth0", "up", namespace=node.network_namespace)
        _ip("route", "add", "default", "via", HOST_ADDRESS, namespace=node.network_namespace)
        # Kubelet queries cloud metadata services: reject at once instead of a timeout of six seconds.
        _ip("route", "add", "unreachable", "169.254.0.0/16", namespace=node.network_namespace)
        _ip("route", "add", node.pods_subnet, "via", node.address)
    for node in wanted:
        for other in wanted:
            if other != node:
                _ip("route", "add", other.pods_subnet, "via", other.address, namespace=node.network_namespace)
    # Service addresses are translated inside nodes, so the machine routes them through the first.
    _ip("route", "add", SERVICES_SUBNET, "via", wanted[0].address)


def _namespace(name: str) -> None:
    _ip("netns", "add", name)
    _ip("link", "set", "lo", "up", namespace=name)


def _plug(interface: str, port: str, namespace: str = "") -> None:
    """Create `interface`, in the namespace or on the machine, with its peer on the fabric's bridge."""
    pair = ["link", "add", port, "type", "veth", "peer", "name", interface]
    _ip(*pair, "netns", namespace or "1", namespace=FABRIC_NAMESPACE)
    _ip("link", "set", port, "master", "fabric", "up", namespace=FABRIC_NAMESPACE)


def _is_mount(path: Path) -> bool:
    # Path.is_mount() does not detect bind mounts within one file system.
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(path) for line in mounts)


def remove_network() -> None:
    """Remove the namespaces, which removes their interfaces, routes, iptables rules and veth peers."""
    # First, since the kernel removes it some time after its namespace, which would race with this deletion.
    names = [link["ifname"] for link in json.loads(_ip("-json", "link", "show"))]
    if HOST_INTERFACE in names:
        _ip("link", "delete", HOST_INTERFACE)
    there = {line.split()[0] for line in _ip("netns", "list").splitlines()}
    for name in (FABRIC_NAMESPACE, *(node.network_namespace for node in nodes(MOST_NODES))):
        if name in there:
            _ip("netns", "delete", name)
    # `ip netns add` makes this directory a mount; it stays if it has other namespaces.
    while _is_mount(_NAMESPACES) and not any(_NAMESPACES.iterdir()):
        run(["umount", str(_NAMESPACES)])
