"""The container runtime of a node: containerd, runc and CNI plugins from Debian's packages."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from dev.cluster.layout import INSIDE_SETTINGS, Node
from dev.cluster.supervisor import Part
from dev.cluster.versions import PAUSE_IMAGE

SOCKET = Path("/run/containerd/containerd.sock")

_CONTAINERD = f"""\
version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Inside a container or a virtual machine that forbids lowering the score, pods would not start at all.
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{INSIDE_SETTINGS}/cni"
"""


def write_runtime_settings(node: Node) -> None:
    (node.settings / "containerd.toml").write_text(_CONTAINERD)
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.pods_subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, {"type": "loopback"}]}
    (node.settings / "cni").mkdir()
    (node.settings / "cni" / "pods.conflist").write_text(json.dumps(network))


def containerd() -> Part:
    argv = ["containerd", "--config", str(INSIDE_SETTINGS / "containerd.toml")]
    return Part("containerd", argv, Path("/var/log/containerd.log"), ready=lambda: answers(SOCKET))


def answers(place: Path) -> bool:
    """Whether somebody listens at a socket: the file of one whose process was killed stays."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(place))
        except OSError:
            return False
    return True
