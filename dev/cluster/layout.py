"""Paths, addresses and ports of the dev cluster that are shared by modules or could clash on the machine.

Files of a single part, and paths and ports inside a node, are in their modules.

The machine has one end of a veth pair (`memtune0`, HOST_ADDRESS). The other end is plugged into a bridge in a network
namespace of its own (the fabric), and so is each node. The machine's iptables never see cluster traffic.

    machine  10.213.0.1 ──┐
    node-1   10.213.0.11 ─┼─ bridge in namespace memtune-fabric
    node-2   10.213.0.12 ─┘
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STATE = Path("/var/lib/memtune-devcluster")
# Not configurable, like STATE: there is one cluster per machine.
COMMAND_LOCK = Path("/run/memtune-devcluster.lock")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memtune" / "devcluster"
CHECKOUT = Path(__file__).resolve().parents[2]

# Where Debian's programs (buildah, apt) write.
IMAGE_STORAGE = Path("/var/lib/containers")
PACKAGES = Path("/var/cache/apt")

# Each node has its own.
NODES_OWN = (Path("/var/lib"), Path("/var/log"), Path("/run"))
# Outside STATE and CACHE, which may differ for the user who runs `down`.
VOLUMES = Path("/var/cache/memtune-devcluster-volumes")
CERTIFICATES = STATE / "certificates"
LOGS = STATE / "log"
KUBECONFIG = STATE / "kubeconfig"
STATUS = STATE / "status.json"
NODE_COUNT = STATE / "nodes"
SUPERVISOR_LOCK = STATE / "supervisor.lock"
SYSCTLS = STATE / "sysctls.json"
LOADED_MODULES = STATE / "modules.json"
MONITORING = STATE / "monitoring"
MONITORING_STATUS = MONITORING / "status.json"
MONITORING_LOCK = MONITORING / "supervisor.lock"

HOST_INTERFACE = "memtune0"
FABRIC_NAMESPACE = "memtune-fabric"
CGROUP = "memtune-devcluster"

FABRIC_SUBNET = "10.213.0.0/24"
PODS_SUBNET = "10.214.0.0/16"
SERVICES_SUBNET = "10.215.0.0/16"
HOST_ADDRESS = "10.213.0.1"
KUBERNETES_SERVICE = "10.215.0.1"
CLUSTER_DOMAIN = "cluster.local"

API_PORT = 6443
DNS_PORT = 53
API_URL = f"https://{HOST_ADDRESS}:{API_PORT}"
ETCD_PORT = 23790
ETCD_PEER_PORT = 23800
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
# Bound on the machine; kubelet and kube-proxy ports are in the nodes' network namespaces.
LOOPBACK_PORTS = {
    "etcd": ETCD_PORT,
    "etcd's peers": ETCD_PEER_PORT,
    "the controller manager": CONTROLLER_MANAGER_PORT,
    "the scheduler": SCHEDULER_PORT,
}
# Bound on HOST_ADDRESS.
HOST_PORTS = {"the API server": API_PORT, "DNS": DNS_PORT}
PROMETHEUS_PORT = 23909
DASHBOARDS_PORT = 23910
MONITORING_PORTS = {"Prometheus": PROMETHEUS_PORT, "the dashboards": DASHBOARDS_PORT}

GPUS_PER_NODE = 8
MOST_NODES = 4


@dataclass(frozen=True)
class Node:
    """One node: a network, mount and process namespace with a containerd, a kubelet and a kube-proxy inside.

    Inside the node, `lib` is /var/lib and `log` is /var/log, so that programs can use their defaults.
    """

    number: int

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        return f"10.213.0.{10 + self.number}"

    @property
    def pods_subnet(self) -> str:
        return f"10.214.{self.number}.0/24"

    @property
    def network_namespace(self) -> str:
        return f"memtune-{self.name}"

    @property
    def cgroup(self) -> str:
        return f"/{CGROUP}/{self.name}"

    @property
    def lib(self) -> Path:
        return STATE / self.name / "lib"

    @property
    def log(self) -> Path:
        return STATE / self.name / "log"

    @property
    def settings(self) -> Path:
        """Configuration files and certificates; INSIDE_SETTINGS inside the node."""
        return self.lib / "node"


INSIDE_SETTINGS = Path("/var/lib/node")


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(number) for number in range(1, count + 1))
