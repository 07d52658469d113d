"""Builds the objects of a run: a headless Service, one pod per node, and the PodGroup or JobSet.

Pure: equal input, equal output.
"""

from __future__ import annotations

import math

from memtune.api import API_VERSION, KIND, Job
from memtune.controller.budget import most_probe_seconds
from memtune.wire.names import plan_hash, pod_name, run_name
from memtune.wire.run import Run, RunKind
from memtune_operator.pods import gangs, names, placement, pod_security, variables, wrapped_container
from memtune_operator.pods.jobset import job_set
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.references import check_references
from memtune_operator.pods.template import read_template

# The Kubernetes default.
TERMINATION_MESSAGE = "/dev/termination-log"
# Time for a probe to start on its node: to pull a large image, run init containers and wait for the other pods of its
# run. It counts in the pod's activeDeadlineSeconds.
_WAITING_SECONDS = 4 * 3600
# The API server's maximum.
_LONGEST_DEADLINE = 2**31 - 1


def objects(job: Job, run: Run, runner_image: str, is_restricted: bool = False) -> list[Manifest]:
    """All objects of a run, in order of creation."""
    made = pods(job, run, runner_image, is_restricted)
    if job.spec.launcher == "JobSet":
        made = [job_set(made, job.metadata.name, names.job_set_name(job.metadata.name, run.kind, run.number))]
    return [service(job, run), *_pod_groups(job, run, runner_image), *made]


def service(job: Job, run: Run) -> Manifest:
    """The headless Service by which the pods of a run find each other before they are ready."""
    name = run_name(job.metadata.name, run.kind, run.number)
    labels = names.run_labels(job.metadata.name, run.kind, run.number)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(job, name, labels, plan_annotations(run)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels,
            "ports": [
                {"name": names.RENDEZVOUS_PORT_NAME, "port": variables.RENDEZVOUS_PORT, "protocol": "TCP"},
            ],
        },
    }


def _pod_groups(job: Job, run: Run, runner_image: str) -> list[Manifest]:
    found = gangs.pod_group(job, read_template(job, runner_image))
    if found is None:
        return []
    kind, spec = found
    name = run_name(job.metadata.name, run.kind, run.number)
    labels = names.run_labels(job.metadata.name, run.kind, run.number)
    metadata = metadata_of(job, name, labels, plan_annotations(run))
    return [{"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}]


def pods(job: Job, run: Run, runner_image: str, is_restricted: bool = False) -> list[Manifest]:
    """All pods of a run, one per node; the first hosts the rendezvous.

    ``is_restricted`` fills in the fields that Pod Security `restricted` requires.
    """
    made = [_pod(job, run, index, job.spec.runner.image or runner_image) for index in range(job.spec.resources.nodes)]
    return [{**pod, "spec": pod_security.fill_in(pod["spec"])} for pod in made] if is_restricted else made


def _pod(job: Job, run: Run, index: int, runner_image: str) -> Manifest:
    template = read_template(job, runner_image)
    gang_labels, gang_annotations = gangs.pod_metadata(job, run, template)
    run_labels = names.run_labels(job.metadata.name, run.kind, run.number)
    labels = merged(template, "labels", {**run_labels, names.LABEL_INDEX: str(index), **gang_labels})
    annotations = merged(template, "annotations", {**plan_annotations(run), **gang_annotations})
    name = pod_name(job.metadata.name, run.kind, run.number, index)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata_of(job, name, labels, annotations),
        "spec": _pod_spec(template["spec"], job, run, index, runner_image),
    }


def _pod_spec(spec: Manifest, job: Job, run: Run, index: int, runner_image: str) -> Manifest:
    position = wrapped_container.wrapped_index(spec["containers"], job.spec.resources.gpu_resource)
    container = spec["containers"][position]
    check_references(spec, container, job)
    env = variables.of_pod(job, run, index, container.get("terminationMessagePath") or TERMINATION_MESSAGE)
    wrapped = wrapped_container.wrap(container, job, run, env)
    return {
        **placement.with_nodes(spec, job, run),
        **deadline(spec, job, run),
        "restartPolicy": "Never",
        "hostname": pod_name(job.metadata.name, run.kind, run.number, index),
        "subdomain": run_name(job.metadata.name, run.kind, run.number),
        "initContainers": [wrapped_container.copy_runner(spec, runner_image), *(spec.get("initContainers") or [])],
        "containers": [*spec["containers"][:position], wrapped, *spec["containers"][position + 1 :]],
        "volumes": [*(spec.get("volumes") or []), *volumes(wrapped, job)],
    }


def deadline(spec: Manifest, job: Job, run: Run) -> Manifest:
    """Set activeDeadlineSeconds on probes, so that a stuck one ends without an operator. Attempts have none."""
    if run.kind is not RunKind.PROBE:
        return {}
    latest = min(math.ceil(most_probe_seconds(job)) + _WAITING_SECONDS, _LONGEST_DEADLINE)
    own = spec.get("activeDeadlineSeconds")
    return {"activeDeadlineSeconds": min(own, latest) if isinstance(own, int) else latest}


def volumes(wrapped: Manifest, job: Job) -> list[Manifest]:
    """The volumes for MemTune's mounts in the wrapped container."""
    sources: dict[str, Manifest] = {
        names.RUNNER_VOLUME: {"emptyDir": {}},
        # No sizeLimit: the content counts towards the container's memory limit.
        names.SHM_VOLUME: {"emptyDir": {"medium": "Memory"}},
    }
    if job.spec.checkpoint and job.spec.checkpoint.volume:
        sources[names.CHECKPOINT_VOLUME] = job.spec.checkpoint.volume.model_dump(by_alias=True, exclude_none=True)
    mounted = {mount.get("name") for mount in wrapped["volumeMounts"]}
    return [{"name": name, **source} for name, source in sources.items() if name in mounted]


def metadata_of(job: Job, name: str, labels: dict[str, str], annotations: dict[str, str]) -> Manifest:
    """The metadata of an object owned by the job."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        # Deleting the job must not wait for its pods.
        "blockOwnerDeletion": False,
    }
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner],
    }


def merged(template: Manifest, part: str, ours: dict[str, str]) -> dict[str, str]:
    """The template's labels or annotations, merged with those of a run."""
    own = template["metadata"].get(part) or {}
    for key in sorted(set(own) & set(ours)):
        raise wrapped_container.conflict(f"metadata.{part}", f"{key} is set by each run", "take it out")
    return {**own, **ours}


def plan_annotations(run: Run) -> dict[str, str]:
    """The annotations with the run's plan."""
    return {names.ANNOTATION_PLAN: str(run.plan), names.ANNOTATION_PLAN_HASH: plan_hash(run.plan)}
