"""How many files a reader has to open to follow a decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_situations import probed
from entered_files import entered
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

import memtune
from memtune.api.job import Job
from memtune.api.status import load_status
from memtune.controller import Decision, decide
from memtune.memory.measured_overhead import MeasuredOverhead


def job() -> Job:
    resources = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi", "gpuProduct": "h100-80gb"}
    return make_job(resources=resources, tuning={"parallelProbes": 1})


def starting(cluster: SimulatedCluster) -> SimulatedCluster:
    """Let the recorded runs begin, and the decision see it."""
    cluster.reconcile()
    for run in cluster.runs():
        cluster.start(run)
    cluster.reconcile()
    cluster.reconcile()
    return cluster


def files_of_a_decision_that_changes_nothing(cluster: SimulatedCluster, **observed: Any) -> set[str]:
    seen = replace(cluster.observe(), **observed)
    decision = decide(cluster.job, seen, cluster.now)
    assert decision.status == load_status(cluster.status)
    wake = decision.wake_after_seconds if cluster.status["phase"] == "Probing" else None  # a probe has a limit
    assert decision == Decision(decision.status, wake_after_seconds=wake)
    return entered(lambda: decide(cluster.job, seen, cluster.now), memtune)


def test_a_decision_that_changes_nothing_enters_few_files() -> None:
    cluster = probed(job(), measured_overhead=MeasuredOverhead())
    cluster.reconcile()
    # What its probes measured is stored.
    probes = tuple(probe.model_copy(update={"measured_by": "tiny"}) for probe in load_status(cluster.status).probes)
    assert cluster.status["phase"] == "Running"
    assert len(files_of_a_decision_that_changes_nothing(cluster, earlier=probes)) <= 12


@pytest.mark.parametrize("ended", [0, 1])
def test_a_decision_that_changes_nothing_enters_few_files_while_a_probe_runs(ended: int) -> None:
    cluster = starting(SimulatedCluster(job(), measured_overhead=MeasuredOverhead()))
    for _ in range(ended):
        cluster.tick(20.0)
        for run in cluster.runs():
            cluster.finish(run)
        starting(cluster)
    probes = tuple(
        probe.model_copy(update={"measured_by": "tiny"})
        for probe in load_status(cluster.status).probes
        if probe.ended_at
    )
    assert (cluster.status["phase"], len(probes)) == ("Probing", ended)
    # Of what a running job needs, and of probes and their budget.
    assert len(files_of_a_decision_that_changes_nothing(cluster, earlier=probes)) <= 14
