"""Which nodes a run may use, and which GPUs they advertise."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.controller import Node
from memtune.units import GIB, MIB
from memtune_operator.kubernetes.nodes import candidates

GPU = "nvidia.com/gpu"


def node(name: str = "a", gpus: int = 8, **parts: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": parts.get("labels", {})},
        "spec": {"taints": parts.get("taints", [])},
        "status": {"allocatable": {GPU: str(gpus)} if gpus else {}},
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
