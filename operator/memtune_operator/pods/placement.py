"""Node affinity of the pods of a run: the GPU product, one pod per node, and nodes to avoid."""

from __future__ import annotations

from memtune.api import Job
from memtune.wire.run import Run
from memtune_operator.pods import names
from memtune_operator.pods.kinds import Manifest

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def with_nodes(spec: Manifest, job: Job, run: Run) -> Manifest:
    """The pod spec with affinity to the job's GPU product, away from avoided nodes and from the run's other pods."""
    product = run.gpu_product or job.spec.resources.gpu_product
    affinity = _apart(_kept_to(spec.get("affinity") or {}, product, run), job, run)
    return {**spec, "affinity": affinity} if affinity else spec


def off_nodes(run: Run) -> Manifest:
    """The affinity of a pod without GPU: any node except the avoided ones."""
    return _kept_to({}, None, run)


def _kept_to(affinity: Manifest, product: str | None, run: Run) -> Manifest:
    wanted = {
        "matchExpressions": [_requirement(names.LABEL_GPU_PRODUCT, "In", product)] if product else [],
        # By metadata.name, since the hostname label may differ; the API server allows one value per expression.
        "matchFields": [_requirement("metadata.name", "NotIn", node) for node in sorted(run.avoided_nodes)],
    }
    if not any(wanted.values()):
        return affinity
    node_affinity: Manifest = affinity.get("nodeAffinity") or {}
    required: Manifest = node_affinity.get(REQUIRED) or {}
    # The user's terms are ORed, so the requirements are added to each.
    terms = [_with_requirements(term, wanted) for term in required.get("nodeSelectorTerms") or [{}]]
    return {**affinity, "nodeAffinity": {**node_affinity, REQUIRED: {**required, "nodeSelectorTerms": terms}}}


def _requirement(key: str, operator: str, value: str) -> Manifest:
    return {"key": key, "operator": operator, "values": [value]}


def _apart(affinity: Manifest, job: Job, run: Run) -> Manifest:
    """Pod anti-affinity within the run: sharding and measurements are per node."""
    if job.spec.resources.nodes == 1:
        return affinity
    anti: Manifest = affinity.get("podAntiAffinity") or {}
    labels = names.run_labels(job.metadata.name, run.kind, run.number)
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": names.LABEL_HOSTNAME}
    return {**affinity, "podAntiAffinity": {**anti, REQUIRED: [*(anti.get(REQUIRED) or []), term]}}


def _with_requirements(term: Manifest, wanted: dict[str, list[Manifest]]) -> Manifest:
    added = {part: [*(term.get(part) or []), *more] for part, more in wanted.items() if more}
    return {**term, **added}
