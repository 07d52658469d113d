"""Which nodes a run may use, which GPUs they advertise, and which nodes are lost."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.controller import Node
from memtune.units import GIB, MIB
from memtune_operator.kubernetes.nodes import candidates, healthy_nodes, lost
from memtune_operator.pods.pod_reader import seconds_of

GPU = "nvidia.com/gpu"
NOW = seconds_of("2026-01-01T01:00:00Z")


def node(name: str = "a", gpus: int = 8, **parts: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": parts.get("labels", {})},
        "spec": {"taints": parts.get("taints", [])},
        "status": {"allocatable": {GPU: str(gpus)} if gpus else {}, "conditions": parts.get("conditions", [])},
    }


def required(*expressions: dict[str, Any], part: str = "matchExpressions") -> dict[str, Any]:
    terms = [{part: [expression]} for expression in expressions]
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": wanted}}


def test_labels_give_product_and_memory() -> None:
    labels = {"nvidia.com/gpu.product": "H100", "nvidia.com/gpu.memory": str(80 * GIB // MIB)}
    assert candidates([node(labels=labels)], {}, GPU) == (Node("a", "H100", 80 * GIB, 8),)
    assert candidates([node(labels={"nvidia.com/gpu.memory": "a lot"})], {}, GPU) == (Node("a", gpus=8),)


def test_nodes_without_gpus_do_not_count_and_the_order_is_fixed() -> None:
    nodes = [node("b"), node("none", gpus=0), node("a")]
    assert [each.name for each in candidates(nodes, {}, GPU)] == ["a", "b"]
    assert len(candidates(nodes, {}, None)) == len(nodes)


LABELS = {"zone": "east", "cores": "64"}
TAINT = {"key": "team", "value": "research", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("pod_spec", "is_allowed"),
    [
        ({"nodeSelector": {"zone": "east"}}, True),
        ({"nodeSelector": {"zone": "west"}}, False),
        (required({"key": "zone", "operator": "In", "values": ["east", "west"]}), True),
        (required({"key": "zone", "operator": "NotIn", "values": ["east"]}), False),
        (required({"key": "disk", "operator": "NotIn", "values": ["hdd"]}), True),
        (required({"key": "zone", "operator": "Exists"}), True),
        (required({"key": "zone", "operator": "DoesNotExist"}), False),
        (required({"key": "cores", "operator": "Gt", "values": ["32"]}), True),
        (required({"key": "cores", "operator": "Lt", "values": ["32"]}), False),
        (required({"key": "zone", "operator": "Gt", "values": ["32"]}), False),
        (required({"key": "cores", "operator": "Gt", "values": ["--5"]}), False),
        (required({"key": "cores", "operator": "Lt", "values": ["9" * 5000]}), False),
        (required({"key": "zone", "operator": "Resembles", "values": ["east"]}), False),
        (required({"key": "metadata.name", "operator": "In", "values": ["a"]}, part="matchFields"), True),
        (required({"key": "metadata.name", "operator": "In", "values": ["b"]}, part="matchFields"), False),
        (
            required(
                {"key": "zone", "operator": "DoesNotExist"}, {"key": "zone", "operator": "In", "values": ["east"]}
            ),
            True,
        ),
    ],
)
def test_selector_and_affinity_are_kept(pod_spec: dict[str, Any], is_allowed: bool) -> None:
    assert bool(candidates([node(labels=LABELS)], pod_spec, GPU)) is is_allowed


@pytest.mark.parametrize(
    ("toleration", "is_allowed"),
    [
        (None, False),
        ({"key": "team", "value": "research", "effect": "NoSchedule"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "sales"}, False),
        ({"key": "team", "value": "research", "effect": "NoExecute"}, False),
    ],
)
def test_taints_are_tolerated(toleration: dict[str, Any] | None, is_allowed: bool) -> None:
    pod_spec = {"tolerations": [toleration]} if toleration else {}
    assert bool(candidates([node(taints=[TAINT])], pod_spec, GPU)) is is_allowed


@pytest.mark.parametrize(
    "taint",
    [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "x", "effect": "PreferNoSchedule"},
    ],
)
def test_a_temporary_node_condition_does_not_change_the_hardware(taint: dict[str, Any]) -> None:
    assert candidates([node(taints=[taint])], {}, GPU)


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
