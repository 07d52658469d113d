"""A run made by a JobSet, as the API server lists it: JobSet, Job, and pods with the controller's names."""

from __future__ import annotations

from typing import Any

from api_answers import PODS, ApiServer, found, listed
from told_job import NAME, told_job

RUN = f"{NAME}-train-2"
POD = f"{RUN}-pods-0-0-x7k2p"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/research/jobsets"
BATCH_JOBS = "/apis/batch/v1/namespaces/research/jobs"


def job_of_a_job_set() -> dict[str, Any]:
    """The told job, with JobSets for its runs."""
    job = told_job()
    job["spec"]["launcher"] = "JobSet"
    return job


def made(name: str, uid: str, owner: str) -> dict[str, Any]:
    """Return the metadata of one object in the ownership chain."""
    return {
        "name": name,
        "uid": uid,
        "labels": {"memtune.dev/job": NAME, "memtune.dev/run": RUN},
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        "ownerReferences": [{"uid": owner, "controller": True}],
    }


def answer_with_a_job_set(server: ApiServer, path: str) -> None:
    """The job, one pod of its second attempt, and one that a stranger has labelled."""
    server.answer(path, found(job_of_a_job_set()))
    server.answer(JOB_SETS, listed({"metadata": made(RUN, "set", "0b5e")}))
    batch_jobs = [made(f"{RUN}-pods-0", "batch", "set"), made("strange", "other", "somebody")]
    server.answer(BATCH_JOBS, listed(*({"metadata": each} for each in batch_jobs)))
    spec = {"spec": {"containers": [{"name": "trainer"}]}, "status": {"phase": "Running"}}
    pods = [made(POD, "pod", "batch"), made("strange-0", "forged", "other")]
    server.answer(PODS, listed(*({"metadata": each, **spec} for each in pods)))
