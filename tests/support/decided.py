"""A simulated cluster brought to where most situations begin, and how to ask what was decided there."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any, TypeVar

from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.memory.measured_overhead import Remembered
from memtune.wire.report import Ending

Cluster = TypeVar("Cluster", bound=SimulatedCluster)

SAVED = {"checkpoint_samples": 320, "checkpoint_format": "deepspeed", "steps": 30}


def launched(job: Job | None = None) -> SimulatedCluster:
    """A cluster whose job has probed, and whose first train run is running."""
    return probed(job) if job else deepcopy(_ordinary())


@cache
def _ordinary() -> SimulatedCluster:
    return probed(make_job())


def probed(
    job: Job, factor: float = 1.0, built: str = "", measured: Remembered | None = None, **told: Any
) -> SimulatedCluster:
    """A cluster that has made up its mind on a job whose plans need ``factor`` times what is predicted.

    ``told`` is what the probes report, too.
    """
    cluster = SimulatedCluster(job, factor, built=built, measured=measured)
    return until_decided(cluster, lambda run: cluster.finish(run, **told))


def until_decided(cluster: Cluster, finish: Callable[[str], None]) -> Cluster:
    """The cluster once it has made up its mind; ``finish`` ends a probe, by its name."""
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
    """The running train run ends, saying so, and the operator sees it."""
    for pod in cluster.pods.values():
        if pod.is_running:
            cluster.end(pod, exit_code, cluster.report(pod, ending, **report))
    cluster.reconcile()
    cluster.tick(20.0)


def edit(cluster: SimulatedCluster, block: str = "", **fields: Any) -> None:
    """Change fields of a block of the spec, or of the spec itself, which the API server counts."""
    job = cluster.job
    spec = job.spec
    changes = {block: getattr(spec, block).model_copy(update=fields)} if block else fields
    metadata = job.metadata.model_copy(update={"generation": job.metadata.generation + 1})
    cluster.job = job.model_copy(update={"spec": spec.model_copy(update=changes), "metadata": metadata})
    cluster.reconcile()


def condition(cluster: SimulatedCluster, kind: str) -> dict[str, Any]:
    """One condition of the status, or one that says it is absent."""
    found = [each for each in cluster.status["conditions"] if each["type"] == kind]
    return found[0] if found else {"status": "absent", "reason": "", "message": ""}


def last(cluster: SimulatedCluster) -> dict[str, Any]:
    """The newest attempt."""
    attempt: dict[str, Any] = cluster.status["attempts"][-1]
    return attempt
