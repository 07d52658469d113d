"""A node: writes its settings from outside, and is the program that becomes process 1 inside.

    machine's supervisor -> nsenter (network) -> unshare (mounts, processes) -> this module -> containerd, kubelet, ...

When process 1 of a node dies, the kernel ends all of the node's processes and mounts, including pods, like a power
cut.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path

from dev.cluster.binaries import command
from dev.cluster.certificates import write_kubeconfig
from dev.cluster.layout import (
    CERTIFICATES,
    CLUSTER_DOMAIN,
    HOST_ADDRESS,
    INSIDE_SETTINGS,
    LOGS,
    PODS_SUBNET,
    STATUS,
    Node,
)
from dev.cluster.runtime import SOCKET, containerd, write_runtime_settings
from dev.cluster.shell import ClusterError, run
from dev.cluster.supervisor import Part, Supervisor, part_pids

_KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {address}
readOnlyPort: 0
tlsCertFile: {settings}/serving.crt
tlsPrivateKeyFile: {settings}/serving.key
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {settings}/ca.crt}}
authorization: {{mode: Webhook}}
clusterDomain: {domain}
clusterDNS: [{dns}]
resolvConf: {settings}/resolv.conf
cgroupDriver: cgroupfs
cgroupRoot: {cgroup}
enforceNodeAllocatable: []
failSwapOn: false
# A disk that others fill must not evict the pods of a test, and images came from here: there is no fetching them again.
evictionHard: {{nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
# Looked at every second, so that a node is Ready as soon as it can be; written only when something has changed.
nodeStatusUpdateFrequency: 1s
nodeStatusReportFrequency: 5m
"""


def write_node_settings(node: Node) -> None:
    node.settings.mkdir(parents=True)
    node.log.mkdir()
    kubelet = _KUBELET.format(
        address=node.address, settings=INSIDE_SETTINGS, domain=CLUSTER_DOMAIN, dns=HOST_ADDRESS, cgroup=node.cgroup
    )
    (node.settings / "kubelet.yaml").write_text(kubelet)
    (node.settings / "resolv.conf").write_text(f"nameserver {HOST_ADDRESS}\n")
    for name in ("ca.crt", f"{node.name}-serving.crt", f"{node.name}-serving.key"):
        shutil.copy2(CERTIFICATES / name, node.settings / name.removeprefix(f"{node.name}-"))
    write_kubeconfig(node.settings / "kubelet.kubeconfig", node.name)
    write_kubeconfig(node.settings / "kube-proxy.kubeconfig", "kube-proxy")
    write_runtime_settings(node)


def node_part(node: Node) -> Part:
    """The node as a part of the machine's supervisor."""
    enter = ["nsenter", f"--net=/run/netns/{node.network_namespace}"]
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
    argv = [*enter, *unshare, sys.executable, "-m", "dev.cluster.node", str(node.number)]
    return Part(node.name, argv, LOGS / f"{node.name}.log")


def process_one(node: Node) -> int:
    """The process id, on the machine, of the node's first process: the child of `unshare`."""
    unshare = part_pids(STATUS).get(node.name)
    with suppress(FileNotFoundError, ProcessLookupError):
        if children := Path(f"/proc/{unshare}/task/{unshare}/children").read_text():
            return int(children)
    raise ClusterError(
        f"{node.name} does not run: `python3 -m dev.cluster status` says why, and `python3 -m dev.cluster up` starts "
        "anew what is dead"
    )


def _kubelet(node: Node) -> Part:
    argv = [
        command("kubelet"),
        f"--config={INSIDE_SETTINGS / 'kubelet.yaml'}",
        f"--kubeconfig={INSIDE_SETTINGS / 'kubelet.kubeconfig'}",
        "--container-runtime=remote",
        f"--container-runtime-endpoint=unix://{SOCKET}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]
    return Part("kubelet", argv, Path("/var/log/kubelet.log"))


def _kube_proxy(node: Node) -> Part:
    argv = [
        command("kube-proxy"),
        f"--kubeconfig={INSIDE_SETTINGS / 'kube-proxy.kubeconfig'}",
        f"--hostname-override={node.name}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={PODS_SUBNET}",
        "--healthz-bind-address=127.0.0.1:10256",
        # These two are kernel-wide, not per node.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
    ]
    return Part("kube-proxy", argv, Path("/var/log/kube-proxy.log"))


def _move_in(node: Node) -> None:
    """Mount the node's own /var/lib, /var/log and /run, separate from the machine's and other nodes'."""
    # The machine's name servers are unreachable here.
    run(["mount", "--bind", str(node.settings / "resolv.conf"), "/etc/resolv.conf"])
    run(["mount", "--bind", str(node.log), "/var/log"])
    run(["mount", "--bind", str(node.lib), "/var/lib"])
    run(["mount", "-t", "tmpfs", "tmpfs", "/run"])


def main() -> None:
    node = Node(int(sys.argv[1]))
    _move_in(node)
    Supervisor(INSIDE_SETTINGS / "status.json").run([containerd(), _kubelet(node), _kube_proxy(node)])


if __name__ == "__main__":
    main()
