"""The pod of an emulated probe: the user's own image and command, on any x86-64 node, without its GPUs. Pure."""

from __future__ import annotations

import math
from typing import Any

from memtune.decide.completing import EMULATION_SECONDS
from memtune.run import Run
from memtune.spec import Job
from memtune_operator import manifests, names, pod_security, variables, wrapping
from memtune_operator.references import check_references
from memtune_operator.template import read_template
from memtune_operator.wrapping import Manifest

# What of the template places GPUs, or brings them into a container.
_OF_GPUS = (
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints"),
    *("runtimeClassName", "resourceClaims", "activeDeadlineSeconds"),
)
_CPUS = ("1", "4")
# On its node: for a large image, and for what init containers fetch. The operator gives up sooner.
_WAITING_SECONDS = 1800


def emulated_pod(job: Job, run: Run, runner_image: str, is_restricted: bool = False) -> Manifest:
    """The one pod that runs a few steps of the job's command under a plan, on an emulated GPU."""
    template, name = read_template(job, runner_image), names.pod_name(job.metadata.name, run.kind, run.number, 0)
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
    container = spec["containers"][wrapping.wrapped_index(spec["containers"], job.spec.resources.gpu_resource)]
    check_references(spec, container, job)
    path = container.get("terminationMessagePath") or manifests.TERMINATION_MESSAGE
    wrapped = wrapping.wrap(container, job, run, variables.of_pod(job, run, 0, path))
    emulating = {
        **{name: value for name, value in wrapped.items() if name != "ports"},
        "resources": _resources(run),
        "volumeMounts": _mounts(wrapped["volumeMounts"], job),
    }
    prepared = [_without_gpus(each, job.spec.resources.gpu_resource) for each in spec.get("initContainers") or []]
    own = [volume for volume in manifests.volumes(wrapped, job) if volume["name"] != names.CHECKPOINT_VOLUME]
    return {
        **{name: value for name, value in spec.items() if name not in _OF_GPUS},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "activeDeadlineSeconds": math.ceil(EMULATION_SECONDS) + _WAITING_SECONDS,
        "restartPolicy": "Never",
        "initContainers": [manifests.copy_runner(spec, runner_image), *prepared],
        "containers": [emulating],
        "volumes": [*(spec.get("volumes") or []), *own, *_checkpoints(job)],
    }


def _resources(run: Run) -> Manifest:
    memory = str(run.host_request_bytes)
    request, limit = _CPUS
    return {"requests": {"cpu": request, "memory": memory}, "limits": {"cpu": limit, "memory": memory}}


def _mounts(mounts: list[Manifest], job: Job) -> list[Manifest]:
    """Where checkpoints are saved is an empty directory, so that nothing real goes on from what was never computed."""
    if job.spec.checkpoint is None:
        return mounts
    path = job.spec.checkpoint.path
    others = [mount for mount in mounts if mount["mountPath"].rstrip("/") != path.rstrip("/")]
    return [*others, {"name": names.CHECKPOINT_VOLUME, "mountPath": path}]


def _checkpoints(job: Job) -> list[Manifest]:
    return [{"name": names.CHECKPOINT_VOLUME, "emptyDir": {}}] if job.spec.checkpoint else []


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
