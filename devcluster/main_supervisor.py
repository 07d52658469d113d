"""The program that `up` leaves running: the machine's supervisor with every part of the cluster, in order."""

from __future__ import annotations

import sys

from devcluster.control_plane import api_server, controller_manager, scheduler
from devcluster.dns import dns
from devcluster.etcd import etcd
from devcluster.layout import STATUS, SUPERVISOR_LOCK, nodes
from devcluster.node import node_part
from devcluster.supervisor import supervise
from devcluster.volumes import volumes


def main() -> None:
    node_parts = [node_part(node) for node in nodes(int(sys.argv[1]))]
    # DNS before the nodes: kubelets that look for a cloud's metadata service wait five seconds for a silent one.
    parts = [etcd(), api_server(), dns(), *node_parts, controller_manager(), scheduler(), volumes()]
    supervise(parts, STATUS, SUPERVISOR_LOCK)


if __name__ == "__main__":
    main()
