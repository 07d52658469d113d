"""A simulated cluster that stores events as objects, like the API server."""

from __future__ import annotations

from typing import Any

from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.controller import Decision
from memtune_operator.kubernetes.events import event


class EventStoringCluster(SimulatedCluster):
    """Stores the events by name, the only order that a list of the API server has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.version = 98
        self.objects: dict[str, dict[str, Any]] = {}

    def write(self, decision: Decision, version: int) -> bool:
        """Write the status, and emit events as the operator does."""
        is_written = super().write(decision, version)
        metadata = {"name": "tiny", "namespace": "research", "uid": "job-uid", "resourceVersion": str(version)}
        for position, each in enumerate(decision.events if is_written else ()):
            told = event({"metadata": metadata}, each, position)
            self.objects[told["metadata"]["name"]] = told
        return is_written


def cluster_after_job_succeeded() -> EventStoringCluster:
    """Return a small job that succeeded after two probes, one of which fits only without its headroom."""
    resources = {"gpusPerNode": 1, "gpuMemory": "8500Mi", "device": "virtual"}
    cluster = EventStoringCluster(make_job(tuning={"maxProbes": 2}, resources=resources))
    for _ in range(4):
        cluster.reconcile()
        for run in cluster.runs():
            cluster.start(run)
            cluster.finish(run)
    cluster.reconcile()
    return cluster
