"""Brings a simulated cluster to common situations, and reads what was decided there."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any, TypeVar

from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.memory.measured_overhead import MeasuredOverhead
from memtune.wire.report import Ending

Cluster = TypeVar("Cluster", bound=SimulatedCluster)

SAVED = {"checkpoint_samples": 320, "checkpoint_format": "deepspeed", "steps": 30}


def launched(job: Job | None = None) -> SimulatedCluster:
    """Return a cluster whose job has probed and runs its first attempt."""
    return probed(job) if job else deepcopy(_ordinary())


@cache
def _ordinary() -> SimulatedCluster:
    return probed(make_job())


def probed(
    job: Job, factor: float = 1.0, built: str = "", measured_overhead: MeasuredOverhead | None = None, **report: Any
) -> SimulatedCluster:
    """A cluster that has decided on a job whose plans need ``factor`` times the prediction.

    ``report`` is added to the probes' reports.
    """
    cluster = SimulatedCluster(job, factor, built=built, measured_overhead=measured_overhead)
    return until_decided(cluster, lambda run: cluster.finish(run, **report))


def until_decided(cluster: Cluster, finish: Callable[[str], None]) -> Cluster:
    """Run the cluster until it has decided; ``finish`` ends a probe by name."""
    for _ in range(40):
        cluster.reconcile()
        for run in cluster.runs():
            cluster.start(run)
        cluster.reconcile()
        if cluster.status["phase"] in ("Running", "Failed"):
            return cluster
        cluster.tick(20.0)
        for run in cluster.runs():
            finish(run)
    raise AssertionError(cluster.events)


def die(cluster: SimulatedCluster, ending: Ending, exit_code: int, **report: Any) -> None:
    """End the running attempt with this ending, and reconcile."""
    for pod in cluster.pods.values():
        if pod.is_running:
            cluster.end(pod, exit_code, cluster.report(pod, ending, **report))
    cluster.reconcile()
    cluster.tick(20.0)


def edit(cluster: SimulatedCluster, block: str = "", **fields: Any) -> None:
    """Edit fields of a block of the spec, or of the spec itself, and increase its generation."""
    job = cluster.job
    spec = job.spec
    changes = {block: getattr(spec, block).model_copy(update=fields)} if block else fields
    metadata = job.metadata.model_copy(update={"generation": job.metadata.generation + 1})
    cluster.job = job.model_copy(update={"spec": spec.model_copy(update=changes), "metadata": metadata})
    cluster.reconcile()


def condition(cluster: SimulatedCluster, kind: str) -> dict[str, Any]:
    """One condition of the status, or a placeholder if it is absent."""
    found = [each for each in cluster.status["conditions"] if each["type"] == kind]
    return found[0] if found else {"status": "absent", "reason": "", "message": ""}


def last(cluster: SimulatedCluster) -> dict[str, Any]:
    """Return the latest attempt."""
    attempt: dict[str, Any] = cluster.status["attempts"][-1]
    return attempt
