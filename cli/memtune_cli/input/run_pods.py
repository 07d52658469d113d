"""Lists the pods of a job's runs by owner: the job, or its JobSets with `launcher: JobSet`."""

from __future__ import annotations

from memtune.wire.names import job_stem
from memtune_cli.input.cluster import JobAddress
from memtune_cli.input.job_view import JobView
from memtune_operator.pods import names
from memtune_operator.pods.kinds import BATCH_JOB, JOB_SET, POD, Manifest, ObjectKind
from memtune_operator.pods.pod_reader import owned_by, owned_through


def is_by_job_set(view: JobView) -> bool:
    """Whether JobSets create and name the pods."""
    return view.job is not None and view.job.spec.launcher == "JobSet" and not view.is_emulated


async def pods_of(address: JobAddress, view: JobView, uid: str) -> list[Manifest]:
    """The pods of all runs of the job with the given uid."""
    pods = await _labelled(address, POD)
    if not is_by_job_set(view):
        return owned_by(pods, uid)
    job_sets = owned_by(await _labelled(address, JOB_SET), uid)
    return owned_through(pods, owned_through(await _labelled(address, BATCH_JOB), job_sets))


async def _labelled(address: JobAddress, kind: ObjectKind) -> list[Manifest]:
    selector = f"{names.LABEL_JOB}={job_stem(address.name)}"
    return await address.cluster.list(kind.api_version, kind.name, address.namespace, selector)
