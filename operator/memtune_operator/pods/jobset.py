"""Wraps the pods of a run in a JobSet (`launcher: JobSet`), whose controller creates them. Pure.

One indexed Job has all of them, and a pod's completion index is its node rank. Pods are never recreated: the operator
decides what a failure means, not the Job and JobSet controllers.
"""

from __future__ import annotations

from memtune.wire import environment
from memtune_operator.pods import names
from memtune_operator.pods.kinds import JOB_SET, Manifest

_COMPLETION_INDEX = f"metadata.annotations['{names.ANNOTATION_COMPLETION_INDEX}']"


def job_set(pods: list[Manifest], job_name: str, name: str) -> Manifest:
    """The JobSet that creates these pods."""
    metadata = pods[0]["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key != names.LABEL_INDEX}
    queue = {key: labels.pop(key) for key in (names.LABEL_KUEUE_QUEUE,) if key in labels}
    run_labels = {key: labels[key] for key in (names.LABEL_JOB, names.LABEL_RUN, names.LABEL_RUN_KIND)}
    annotations = {**metadata["annotations"], names.ANNOTATION_JOB: job_name}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": _pod_spec(pods[0]["spec"])}
    batch_job = {
        "completionMode": "Indexed",
        "completions": len(pods),
        "parallelism": len(pods),
        # With a limit for the whole Job, its controller would delete the other pods at the first failure, and a user's
        # error would look like a disruption.
        "backoffLimitPerIndex": 0,
        "template": template,
    }
    return {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.name,
        "metadata": {**metadata, "name": name, "labels": {**run_labels, **queue}},
        "spec": {
            # The run has its own Service.
            "network": {"enableDNSHostnames": False},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {
                    "name": names.REPLICATED_JOB,
                    "replicas": 1,
                    "template": {
                        "metadata": {"labels": run_labels, "annotations": {names.ANNOTATION_JOB: job_name}},
                        "spec": batch_job,
                    },
                }
            ],
        },
    }


def _pod_spec(spec: Manifest) -> Manifest:
    """The shared pod spec: pods differ only in the index and host name, which their Job sets."""
    containers = [{**each, **_with_index(each)} for each in spec["containers"]]
    return {**{key: value for key, value in spec.items() if key != "hostname"}, "containers": containers}


def _with_index(container: Manifest) -> Manifest:
    rank = {"name": environment.NODE_RANK, "valueFrom": {"fieldRef": {"fieldPath": _COMPLETION_INDEX}}}
    variables = container.get("env") or []
    return {"env": [rank if each["name"] == environment.NODE_RANK else each for each in variables]} if variables else {}
