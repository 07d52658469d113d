"""Gang scheduling: groups the pods of a run for Kueue, a gang scheduler or JobSet. Pure.

Kueue only needs labels and annotations. The others have their own kinds, which the operator may use only if it was
installed with the permissions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from memtune.api import Job, reasons
from memtune.controller import Blocker
from memtune.wire.names import run_name
from memtune.wire.run import Run
from memtune.words import Word
from memtune_operator.pods import names
from memtune_operator.pods.kinds import BATCH_JOB, COSCHEDULING_GROUP, JOB_SET, VOLCANO_GROUP, Manifest, ObjectKind


class Gang(Word):
    """The integrations, beside Kueue, that group the pods of a run."""

    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"
    JOB_SET = "jobset"


# The kinds that the operator watches for each.
KINDS: dict[Gang, tuple[ObjectKind, ...]] = {
    Gang.VOLCANO: (VOLCANO_GROUP,),
    Gang.COSCHEDULING: (COSCHEDULING_GROUP,),
    Gang.JOB_SET: (JOB_SET, BATCH_JOB),
}
_SCHEDULERS = {
    "volcano": Gang.VOLCANO,
    # The scheduler name in the scheduler-plugins chart.
    "scheduler-plugins-scheduler": Gang.COSCHEDULING,
}


def missing_integration(job: Job, template: Manifest, installed: Collection[Gang]) -> Blocker | None:
    """What blocks the job if the operator was installed without the integration that the job asks for."""
    for where, gang in _asked(job, template):
        if gang not in installed:
            sentence = (
                f"{where} needs an operator that was installed with {str(gang)!r} in its chart's value gangs; "
                "ask whoever installed it, or take the field out"
            )
            return Blocker(reasons.GANG_NOT_INSTALLED, sentence)
    return None


def _asked(job: Job, template: Manifest) -> Iterator[tuple[str, Gang]]:
    if scheduler := _scheduler(template):
        yield f"spec.template.spec.schedulerName {template['spec']['schedulerName']}", scheduler
    if job.spec.launcher == "JobSet":
        yield "spec.launcher JobSet", Gang.JOB_SET


def _scheduler(template: Manifest) -> Gang | None:
    return _SCHEDULERS.get(str(template["spec"].get("schedulerName")))


def pod_metadata(job: Job, run: Run, template: Manifest) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and annotations that mark the pods of a run as one group."""
    group = run_name(job.metadata.name, run.kind, run.number)
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    # Kueue queues a JobSet as a whole, by the JobSet's label.
    if names.LABEL_KUEUE_QUEUE in (template["metadata"].get("labels") or {}) and job.spec.launcher == "Pods":
        labels[names.LABEL_KUEUE_GROUP] = group
        annotations[names.ANNOTATION_KUEUE_COUNT] = str(job.spec.resources.nodes)
        # Otherwise a group with a failed pod holds its quota for a replacement, which here is in another group.
        annotations[names.ANNOTATION_KUEUE_RETRIABLE] = "false"
    if _scheduler(template) is Gang.COSCHEDULING:
        labels[names.LABEL_COSCHEDULING_GROUP] = group
    if _scheduler(template) is Gang.VOLCANO:
        annotations[names.ANNOTATION_VOLCANO_GROUP] = group
    return labels, annotations


def pod_group(job: Job, template: Manifest) -> tuple[ObjectKind, Manifest] | None:
    """The kind and spec of the PodGroup of a run, if the template's scheduler uses one."""
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
