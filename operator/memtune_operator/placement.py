"""Where the pods of a run may be: the GPU product, and the nodes to avoid."""

from __future__ import annotations

from typing import Any

from memtune.run import Run
from memtune.spec import Job
from memtune_operator import names
from memtune_operator.wrapping import Manifest

REQUIRED_NODES = "requiredDuringSchedulingIgnoredDuringExecution"


def with_nodes(spec: Manifest, job: Job, run: Run) -> Manifest:
    """The pod spec, kept to the job's GPU product and off the nodes that the run avoids."""
    wanted = []
    if product := run.gpu_product or job.spec.resources.gpu_product:
        wanted.append({"key": names.LABEL_GPU_PRODUCT, "operator": "In", "values": [product]})
    if run.avoided_nodes:
        wanted.append({"key": names.LABEL_HOSTNAME, "operator": "NotIn", "values": sorted(run.avoided_nodes)})
    if not wanted:
        return spec
    affinity: Manifest = spec.get("affinity") or {}
    node_affinity: Manifest = affinity.get("nodeAffinity") or {}
    required: Manifest = node_affinity.get(REQUIRED_NODES) or {}
    # A node has to match one of the user's terms, so each of them has to hold what is wanted as well.
    terms = [_with_expressions(term, wanted) for term in required.get("nodeSelectorTerms") or [{}]]
    node_affinity = {**node_affinity, REQUIRED_NODES: {**required, "nodeSelectorTerms": terms}}
    return {**spec, "affinity": {**affinity, "nodeAffinity": node_affinity}}


def _with_expressions(term: Manifest, wanted: list[dict[str, Any]]) -> Manifest:
    return {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *wanted]}
