"""GPUs that nodes only claim to have, so that pods that ask for GPUs are scheduled."""

from __future__ import annotations

from dev.cluster.api import client
from dev.cluster.layout import GPUS_PER_NODE, Node


def add_gpus(node: Node) -> None:
    """Add GPUs to the status of a node, whose kubelet has started: a starting one removes unknown GPU resources."""
    patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS_PER_NODE)}]
    client().request("PATCH", f"/api/v1/nodes/{node.name}/status", patch, "application/json-patch+json")
