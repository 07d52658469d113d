"""The Kubernetes kinds that runs consist of."""

from __future__ import annotations

from typing import Any, NamedTuple

# An object as the API server takes and gives it.
Manifest = dict[str, Any]


class ObjectKind(NamedTuple):
    """A kind with its apiVersion: two projects define a PodGroup."""

    api_version: str
    name: str

    def __str__(self) -> str:
        group = self.api_version.rpartition("/")[0]
        return f"{self.name}.{group}" if group else self.name


POD = ObjectKind("v1", "Pod")
SERVICE = ObjectKind("v1", "Service")
VOLCANO_GROUP = ObjectKind("scheduling.volcano.sh/v1beta1", "PodGroup")
COSCHEDULING_GROUP = ObjectKind("scheduling.x-k8s.io/v1alpha1", "PodGroup")
JOB_SET = ObjectKind("jobset.x-k8s.io/v1alpha2", "JobSet")
# JobSets create pods through Jobs.
BATCH_JOB = ObjectKind("batch/v1", "Job")
