"""Which nodes are lost, and with them their pods: by the node objects, and by the pods alone."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.controller.observation import PodObservation
from memtune_operator.pods.lost_nodes import NodesSeen, healthy_nodes, lost
from memtune_operator.pods.pod_reader import observe
from memtune_operator.pods.timestamps import seconds_of

NOW = seconds_of("2026-01-01T01:00:00Z")


def node(name: str = "a", **parts: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"taints": parts.get("taints", [])},
        "status": {"conditions": parts.get("conditions", [])},
    }


def seen(status: dict[str, Any] | None = None, nodes: NodesSeen | None = None, **metadata: Any) -> PodObservation:
    pod = {"metadata": {"name": "llama-train-0-1", **metadata}, "spec": {"nodeName": "a"}, "status": status or {}}
    return observe(pod, 1, "nvidia.com/gpu", nodes, NOW, 180)


@pytest.mark.parametrize(
    ("ready", "since", "is_lost"),
    [
        ("True", "2026-01-01T00:00:00Z", False),
        ("Unknown", "2026-01-01T00:59:00Z", False),
        ("Unknown", "2026-01-01T00:50:00Z", True),
        ("False", "2026-01-01T00:50:00Z", True),
    ],
)
def test_a_node_is_lost_when_it_is_not_ready_for_too_long(ready: str, since: str, is_lost: bool) -> None:
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": since}]
    assert lost([node(conditions=conditions)], NOW, 180) == (frozenset({"a"}) if is_lost else frozenset())


def test_a_node_out_of_service_is_lost_at_once() -> None:
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    assert lost([node(taints=[taint])], NOW, 180) == {"a"}


def test_a_node_is_sound_while_it_is_ready_and_in_service() -> None:
    troubled = [{"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:59:59Z"}]
    away = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    nodes = [node("a"), node("b", conditions=troubled), node("c", taints=[away])]
    assert healthy_nodes(nodes) == {"a"}


def test_a_node_that_never_said_since_when_it_is_not_ready_is_neither_lost_nor_sound() -> None:
    for condition in (
        {"type": "Ready", "status": "Unknown"},
        {"type": "Ready", "status": "Unknown", "lastTransitionTime": None},
    ):
        assert lost([node(conditions=[condition])], NOW, 180) == frozenset()
        assert healthy_nodes([node(conditions=[condition])]) == frozenset()


def test_a_pod_is_lost_with_its_node_but_not_within_its_grace() -> None:
    gone, silent = NodesSeen(frozenset(), frozenset()), NodesSeen(frozenset("a"), frozenset("a"))
    assert seen(nodes=gone).node_lost
    assert seen(nodes=silent).node_lost
    assert seen(nodes=silent, deletionTimestamp="2026-01-01T00:59:00Z").node_lost
    assert not seen(nodes=silent, deletionTimestamp="2026-01-01T01:01:00Z").node_lost
    assert not seen(nodes=NodesSeen(frozenset("a"), frozenset())).node_lost
    assert not seen(nodes=None).node_lost


def ready(status: str, containers: str, since: str = "2026-01-01T00:50:00Z", reason: str = "") -> dict[str, Any]:
    """Return a pod's status with its containers and its Ready condition."""
    return {
        "conditions": [
            {"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": since},
            {"type": "ContainersReady", "status": containers, "lastTransitionTime": since},
        ]
    }


SILENCES = [
    # (the pod's status, its deletionTimestamp, whether its node may be lost, whether it counts as lost)
    (ready("False", "True"), None, True, True),
    (ready("False", "True"), "2026-01-01T01:01:00Z", True, False),
    (ready("False", "True", since="2026-01-01T00:59:00Z"), None, True, False),
    (ready("False", "True", reason="ReadinessGatesNotReady"), None, False, False),
    (ready("False", "False"), None, False, False),
    (ready("True", "True"), None, False, False),
    ({}, "2026-01-01T00:50:00Z", True, True),
    ({}, "2026-01-01T00:59:00Z", True, False),
    ({"reason": "NodeLost"}, "2026-01-01T00:50:00Z", True, True),
]


@pytest.mark.parametrize(("status", "deletion", "is_doubted", "is_lost"), SILENCES)
def test_a_pods_own_condition_shows_a_lost_node(
    status: dict[str, Any], deletion: str | None, is_doubted: bool, is_lost: bool
) -> None:
    found = seen(status, deletionTimestamp=deletion)
    assert (found.node_doubted, found.node_lost) == (is_doubted, is_lost)
    sound = seen(status, NodesSeen(frozenset("a"), frozenset()), deletionTimestamp=deletion)
    assert (sound.node_doubted, sound.node_lost) == (False, False), "who may look at the node knows better"
