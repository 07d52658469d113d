"""Node facts: which nodes can take a run, and what GPUs they have. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memtune.controller import Node
from memtune.units import MIB
from memtune_operator.pods import names
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.placement import REQUIRED

# Taints that the cluster sets for transient conditions; the hardware is unaffected.
_PASSING_TAINTS = "node.kubernetes.io/"
# Gt and Lt compare 64-bit integers.
_NUMBER = re.compile("[+-]?[0-9]{1,19}")


def candidates(nodes: Iterable[Manifest], pod_spec: Manifest, gpu_resource: str | None) -> tuple[Node, ...]:
    """The nodes that have the resource the pod needs, if any, and that its selector, affinity and tolerations allow."""
    having = (node for node in nodes if gpu_resource is None or _has_gpus(node, gpu_resource))
    allowed = (node for node in having if _is_allowed(node, pod_spec))
    return tuple(sorted((_node(node, gpu_resource) for node in allowed), key=lambda node: node.name))


def _node(node: Manifest, gpu_resource: str | None) -> Node:
    labels = node["metadata"].get("labels") or {}
    mebibytes = str(labels.get(names.LABEL_GPU_MEMORY, ""))
    return Node(
        name=node["metadata"]["name"],
        gpu_product=labels.get(names.LABEL_GPU_PRODUCT, ""),
        gpu_memory_bytes=int(mebibytes) * MIB if mebibytes.isdecimal() else 0,
        gpus=int(offered) if (offered := _offered(node, gpu_resource)).isdecimal() else 0,
    )


def _has_gpus(node: Manifest, gpu_resource: str) -> bool:
    return _offered(node, gpu_resource) != "0"


def _offered(node: Manifest, gpu_resource: str | None) -> str:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return str(allocatable.get(gpu_resource, "0"))


def _is_allowed(node: Manifest, pod_spec: Manifest) -> bool:
    labels = node["metadata"].get("labels") or {}
    selector = pod_spec.get("nodeSelector") or {}
    return (
        all(labels.get(key) == value for key, value in selector.items())
        and _is_affine(node, pod_spec.get("affinity") or {})
        and all(_is_tolerated(taint, pod_spec) for taint in (node.get("spec") or {}).get("taints") or [])
    )


def _is_affine(node: Manifest, affinity: Manifest) -> bool:
    required = (affinity.get("nodeAffinity") or {}).get(REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or []
    return not terms or any(_matches(term, node) for term in terms)


def _matches(term: Manifest, node: Manifest) -> bool:
    labels = node["metadata"].get("labels") or {}
    expressions = [(each, labels) for each in term.get("matchExpressions") or []]
    expressions += [(each, {"metadata.name": node["metadata"]["name"]}) for each in term.get("matchFields") or []]
    # An empty term matches no node.
    return bool(expressions) and all(_holds(expression, values) for expression, values in expressions)


def _holds(expression: Manifest, values: Mapping[str, str]) -> bool:
    found = values.get(expression.get("key", ""))
    test = _OPERATORS.get(expression.get("operator", ""))
    return test is not None and test(found, expression.get("values") or [])


def _compares(found: str | None, wanted: list[str], sign: int) -> bool:
    numbers = [found or "", *wanted]
    if len(numbers) != 2 or not all(_NUMBER.fullmatch(number) for number in numbers):
        return False
    return (int(numbers[0]) - int(numbers[1])) * sign > 0


_OPERATORS: dict[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda found, wanted: found in wanted,
    "NotIn": lambda found, wanted: found not in wanted,
    "Exists": lambda found, _: found is not None,
    "DoesNotExist": lambda found, _: found is None,
    "Gt": lambda found, wanted: _compares(found, wanted, 1),
    "Lt": lambda found, wanted: _compares(found, wanted, -1),
}


def _is_tolerated(taint: Manifest, pod_spec: Manifest) -> bool:
    if taint.get("effect") == "PreferNoSchedule" or str(taint.get("key", "")).startswith(_PASSING_TAINTS):
        return True
    return any(_tolerates(toleration, taint) for toleration in pod_spec.get("tolerations") or [])


def _tolerates(toleration: dict[str, Any], taint: Manifest) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")
