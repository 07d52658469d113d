"""Decides which nodes are lost, and with them their pods. Pure.

An operator that may read nodes decides by the node objects (`lost`), one that may not by each pod's own conditions
(`silent_since`). `is_on_lost_node` decides for a pod in either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.timestamps import seconds_if_any

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class NodesSeen(NamedTuple):
    """The names of all nodes, and of the lost ones."""

    known: frozenset[str]
    lost: frozenset[str]


def lost(nodes: Iterable[Manifest], now_seconds: float, after_seconds: float) -> frozenset[str]:
    """The lost nodes: tainted out-of-service by an administrator, or not ready for longer than ``after_seconds``."""
    return frozenset(node["metadata"]["name"] for node in nodes if _is_lost(node, now_seconds, after_seconds))


def healthy_nodes(nodes: Iterable[Manifest]) -> frozenset[str]:
    """The names of the nodes that are ready and in service."""
    return frozenset(node["metadata"]["name"] for node in nodes if not (_is_out(node) or _silence(node)))


def is_on_lost_node(pod: Manifest, nodes: NodesSeen | None, now_seconds: float, after_seconds: float) -> bool:
    """Whether the pod's node is lost, by ``nodes`` or, without them, by the pod; not before its grace period ends."""
    node = (pod.get("spec") or {}).get("nodeName")
    if not node:
        return False
    if nodes is None:
        since = silent_since(pod)
        is_lost = since is not None and now_seconds - since > after_seconds
    elif node not in nodes.known:
        return True
    else:
        is_lost = node in nodes.lost
    return is_lost and _is_past_its_grace(pod, now_seconds)


def silent_since(pod: Manifest) -> float | None:
    """Since when the pod itself indicates a lost node, for operators that may not read nodes.

    The node controller sets only the pod's Ready condition to false, a kubelet also its containers'; and no live
    kubelet leaves a pod long past its grace period.
    """
    conditions = {each.get("type"): each for each in (pod.get("status") or {}).get("conditions") or []}
    ready, containers = conditions.get("Ready") or {}, conditions.get("ContainersReady") or {}
    is_taken = (ready.get("status"), containers.get("status")) == ("False", "True")
    # A readiness gate in the template has the same effect while the kubelet is alive.
    if is_taken and ready.get("reason") != "ReadinessGatesNotReady":
        return seconds_if_any(ready.get("lastTransitionTime"))
    return seconds_if_any(pod["metadata"].get("deletionTimestamp"))


def _is_lost(node: Manifest, now_seconds: float, after_seconds: float) -> bool:
    since = seconds_if_any((_silence(node) or {}).get("lastTransitionTime"))
    # Without a timestamp the duration is unknown, and a run that may still be running must not be started again.
    return _is_out(node) or (since is not None and now_seconds - since > after_seconds)


def _is_out(node: Manifest) -> bool:
    return any(taint.get("key") == OUT_OF_SERVICE for taint in (node.get("spec") or {}).get("taints") or [])


def _silence(node: Manifest) -> Manifest | None:
    """The Ready condition of a node that is not ready, else None."""
    conditions: list[Manifest] = (node.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == "Ready" and each.get("status") != "True"), None)


def _is_past_its_grace(pod: Manifest, now_seconds: float) -> bool:
    deleted = seconds_if_any(pod["metadata"].get("deletionTimestamp"))
    # The deletionTimestamp already includes the grace period.
    return deleted is None or now_seconds > deleted
