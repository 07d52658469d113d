"""The pod of an emulated run: the user's image and command on any x86-64 node, without GPUs. Pure."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

from memtune.api import Job
from memtune.controller.pods import EMULATION_SECONDS
from memtune.wire.names import pod_name
from memtune.wire.run import Run
from memtune_operator.pods import manifests, names, placement, pod_security, variables, wrapped_container
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.references import check_references
from memtune_operator.pods.template import read_template

# The template fields that place pods on GPUs or bring GPUs into a container.
_OF_GPUS = (
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulerName"),
    *("runtimeClassName", "resourceClaims", "activeDeadlineSeconds"),
)
_CPUS = ("1", "4")
# Time on the node to pull a large image and run init containers. The operator gives up sooner.
_WAITING_SECONDS = 1800
# Subdirectory of the checkpoint path for emulated jobs.
_SAVED_APART = "memtune-emulated"


def emulated_pod(job: Job, run: Run, runner_image: str, is_restricted: bool = False) -> Manifest:
    """The pod that runs the job's command under a plan on an emulated GPU, one for all ranks."""
    template, name = read_template(job, runner_image), pod_name(job.metadata.name, run.kind, run.number, 0)
    labels = {**names.run_labels(job.metadata.name, run.kind, run.number), names.LABEL_INDEX: "0"}
    spec = _pod_spec(template["spec"], job, run, job.spec.runner.image or runner_image)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": manifests.metadata_of(
            job,
            name,
            manifests.merged(template, "labels", labels),
            manifests.merged(template, "annotations", manifests.plan_annotations(run)),
        ),
        "spec": pod_security.fill_in(spec) if is_restricted else spec,
    }


def _pod_spec(spec: Manifest, job: Job, run: Run, runner_image: str) -> Manifest:
    gpu_resource = job.spec.resources.gpu_resource
    container = spec["containers"][wrapped_container.wrapped_index(spec["containers"], gpu_resource)]
    check_references(spec, container, job)
    path = container.get("terminationMessagePath") or manifests.TERMINATION_MESSAGE
    wrapped = wrapped_container.wrap(container, job, run, variables.of_pod(job, run, 0, path))
    made = _probe(wrapped, job, run) if run.gpu else _of_job(wrapped, job, run)
    prepared = [_without_gpus(each, gpu_resource) for each in spec.get("initContainers") or []]
    return {
        **{name: value for name, value in spec.items() if name not in _OF_GPUS},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        **made,
        "restartPolicy": "Never",
        "initContainers": [wrapped_container.copy_runner(spec, runner_image), *prepared],
        "volumes": [*(spec.get("volumes") or []), *made["volumes"]],
    }


def _probe(wrapped: Manifest, job: Job, run: Run) -> Manifest:
    """Adjust the pod for an emulated probe of a job on real GPUs: no metrics, and checkpoints are discarded."""
    emulating = {
        **{name: value for name, value in wrapped.items() if name != "ports"},
        "resources": _resources(run),
    }
    volumes = manifests.volumes(wrapped, job)
    if job.spec.checkpoint:
        # An empty directory, so that no real run resumes from values that were never computed.
        path = job.spec.checkpoint.path
        others = [mount for mount in wrapped["volumeMounts"] if mount["mountPath"].rstrip("/") != path.rstrip("/")]
        emulating["volumeMounts"] = [*others, {"name": names.CHECKPOINT_VOLUME, "mountPath": path}]
        volumes = [volume for volume in volumes if volume["name"] != names.CHECKPOINT_VOLUME]
        volumes.append({"name": names.CHECKPOINT_VOLUME, "emptyDir": {}})
    return {
        "containers": [emulating],
        "volumes": volumes,
        "activeDeadlineSeconds": math.ceil(EMULATION_SECONDS) + _WAITING_SECONDS,
    }


def _of_job(wrapped: Manifest, job: Job, run: Run) -> Manifest:
    """Adjust the pod for a job on emulated GPUs: checkpoints go to a subdirectory of the job's volume."""
    emulating = _without_gpus(wrapped, job.spec.resources.gpu_resource)
    mounts = wrapped["volumeMounts"]
    if job.spec.checkpoint:
        mounts = _saved_apart(mounts, PurePosixPath(job.spec.checkpoint.path))
    affinity = placement.off_nodes(run)
    return {
        "containers": [{**emulating, "volumeMounts": mounts}],
        "volumes": manifests.volumes(wrapped, job),
        **({"affinity": affinity} if affinity else {}),
        **manifests.deadline({}, job, run),
    }


def _saved_apart(mounts: list[Manifest], path: PurePosixPath) -> list[Manifest]:
    """The mounts, with a directory for emulated checkpoints at the checkpoint path.

    It is on the volume mounted there or at the nearest parent directory, so that later attempts find it.
    """
    above = [mount for mount in mounts if path.is_relative_to(mount["mountPath"])]
    if not above:
        return mounts
    holder = max(above, key=lambda mount: len(PurePosixPath(mount["mountPath"]).parts))
    part = "subPathExpr" if holder.get("subPathExpr") else "subPath"
    below = PurePosixPath(holder.get(part) or "", path.relative_to(holder["mountPath"]), _SAVED_APART)
    others = [mount for mount in mounts if PurePosixPath(mount["mountPath"]) != path]
    return [*others, {**holder, "mountPath": str(path), part: str(below)}]


def _resources(run: Run) -> Manifest:
    memory = str(run.host_request_bytes)
    request, limit = _CPUS
    return {"requests": {"cpu": request, "memory": memory}, "limits": {"cpu": limit, "memory": memory}}


def _without_gpus(container: Manifest, gpu_resource: str) -> Manifest:
    resources: dict[str, Any] = container.get("resources") or {}
    if not resources:
        return container
    left = {
        part: {name: amount for name, amount in (resources.get(part) or {}).items() if name != gpu_resource}
        for part in ("requests", "limits")
        if part in resources
    }
    return {**container, "resources": left}
