"""Runs as one group of pods, for the queue, gang scheduler or controller that the job asks for. Pure.

Kueue needs labels and annotations alone. The others have kinds of their own, on which an operator has rights only where
it was installed with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum

from memtune.api import Job
from memtune.controller import Refusal, reasons
from memtune.wire.run import Run
from memtune_operator.pods import names
from memtune_operator.pods.kinds import BATCH_JOB, COSCHEDULING_GROUP, JOB_SET, VOLCANO_GROUP, ObjectKind
from memtune_operator.pods.wrapping import Manifest


class Gang(str, Enum):
    """Who makes a group of a run's pods, beside Kueue."""

    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"
    JOB_SET = "jobset"

    def __str__(self) -> str:
        return str(self.value)


# What the operator has to keep up with, for each of them.
KINDS: dict[Gang, tuple[ObjectKind, ...]] = {
    Gang.VOLCANO: (VOLCANO_GROUP,),
    Gang.COSCHEDULING: (COSCHEDULING_GROUP,),
    Gang.JOB_SET: (JOB_SET, BATCH_JOB),
}
_SCHEDULERS = {
    "volcano": Gang.VOLCANO,
    # As the chart of scheduler-plugins names the scheduler that it installs.
    "scheduler-plugins-scheduler": Gang.COSCHEDULING,
}


def refusal(job: Job, template: Manifest, installed: Collection[Gang]) -> Refusal | None:
    """Why a job cannot have what it asks for, if the operator was installed without it."""
    for where, gang in _asked(job, template):
        if gang not in installed:
            sentence = (
                f"{where} needs an operator that was installed with {str(gang)!r} in its chart's value gangs; "
                "ask whoever installed it, or take the field out"
            )
            return Refusal(reasons.GANG_NOT_INSTALLED, sentence)
    return None


def _asked(job: Job, template: Manifest) -> Iterator[tuple[str, Gang]]:
    if scheduler := _scheduler(template):
        yield f"spec.template.spec.schedulerName {template['spec']['schedulerName']}", scheduler
    if job.spec.launcher == "JobSet":
        yield "spec.launcher JobSet", Gang.JOB_SET


def _scheduler(template: Manifest) -> Gang | None:
    return _SCHEDULERS.get(str(template["spec"].get("schedulerName")))


def pod_metadata(job: Job, run: Run, template: Manifest) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and annotations by which the pods of a run are known to be one group."""
    group = names.run_name(job.metadata.name, run.kind, run.number)
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    # Kueue knows a JobSet as a whole, by its own label.
    if names.LABEL_KUEUE_QUEUE in (template["metadata"].get("labels") or {}) and job.spec.launcher == "Pods":
        labels[names.LABEL_KUEUE_GROUP] = group
        annotations[names.ANNOTATION_KUEUE_COUNT] = str(job.spec.resources.nodes)
        # Else a group whose pod failed keeps its quota until a replacement comes, which would be of another group here.
        annotations[names.ANNOTATION_KUEUE_RETRIABLE] = "false"
    if _scheduler(template) is Gang.COSCHEDULING:
        labels[names.LABEL_COSCHEDULING_GROUP] = group
    if _scheduler(template) is Gang.VOLCANO:
        annotations[names.ANNOTATION_VOLCANO_GROUP] = group
    return labels, annotations


def pod_group(job: Job, template: Manifest) -> tuple[ObjectKind, Manifest] | None:
    """The kind and the spec of the PodGroup that a run needs, if the template's scheduler works with one."""
    resources = job.spec.resources
    spec: Manifest = {
        "minMember": resources.nodes,
        "minResources": {resources.gpu_resource: str(resources.world)},
    }
    gang = _scheduler(template)
    if gang is Gang.VOLCANO:
        if queue := (template["metadata"].get("annotations") or {}).get(names.ANNOTATION_VOLCANO_QUEUE):
            spec["queue"] = queue
        if priority := template["spec"].get("priorityClassName"):
            spec["priorityClassName"] = priority
        return VOLCANO_GROUP, spec
    return (COSCHEDULING_GROUP, spec) if gang is Gang.COSCHEDULING else None
