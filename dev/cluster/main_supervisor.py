"""The machine's supervisor process, which `up` leaves running: lists every part of the cluster in start order."""

from __future__ import annotations

import sys

from dev.cluster.control_plane import api_server, controller_manager, scheduler
from dev.cluster.dns import dns
from dev.cluster.etcd import etcd
from dev.cluster.layout import STATUS, SUPERVISOR_LOCK, nodes
from dev.cluster.node import node_part
from dev.cluster.supervisor import supervise
from dev.cluster.volumes import volumes


def main() -> None:
    node_parts = [node_part(node) for node in nodes(int(sys.argv[1]))]
    # DNS before the nodes: without it, kubelets wait five seconds for a cloud metadata service.
    parts = [etcd(), api_server(), dns(), *node_parts, controller_manager(), scheduler(), volumes()]
    supervise(parts, STATUS, SUPERVISOR_LOCK)


if __name__ == "__main__":
    main()
