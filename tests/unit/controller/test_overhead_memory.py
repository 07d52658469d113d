"""What a job leaves to later jobs of its kind, and how that improves their predictions before a probe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_situations import condition, probed
from simulated_cluster import OUTSIDE_BYTES, SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.controller import Node, decide
from memtune.controller.observation import only_product
from memtune.memory.measured_overhead import MOST_JOBS, JobOverhead, MeasuredOverhead, newest_of
from memtune.units import GIB, MIB
from memtune.wire.run import RunKind

CUDA = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi", "gpuProduct": "h100-80gb"}


def job_of(uid: str, **changes: Any) -> Job:
    job = make_job(**{"resources": CUDA, **changes})
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid})})


def cluster_of(uid: str, known: MeasuredOverhead | None, **changes: Any) -> SimulatedCluster:
    return SimulatedCluster(job_of(uid, **changes), measured_overhead=known)


def after_probes(uid: str, known: MeasuredOverhead | None, **changes: Any) -> SimulatedCluster:
    """Return the cluster of a job that has measured and launched."""
    return probed(job_of(uid, **changes), measured_overhead=known)


def expected_outside(cluster: SimulatedCluster) -> int:
    """Return the predicted memory outside the allocator, before any probe."""
    cluster.reconcile()
    assert not any(probe.get("endedAt") for probe in cluster.status["probes"])
    parts = {part["name"]: part["expected"] for part in cluster.status["prediction"]["components"]}
    found: int = parts["context"]
    return found


def test_the_second_job_starts_from_the_firsts_measurements() -> None:
    first = after_probes("first", MeasuredOverhead())
    assert first.measured_overhead is not None
    assert [each.overhead_bytes for each in first.measured_overhead.jobs] == [OUTSIDE_BYTES]
    assert "earlier job" not in condition(first, "Predicted")["message"], "its own probes are no earlier job"
    blind, second = cluster_of("blind", MeasuredOverhead()), cluster_of("second", first.measured_overhead)
    assert expected_outside(blind) == 500 * MIB
    assert expected_outside(second) == OUTSIDE_BYTES
    assert condition(second, "Predicted")["message"].endswith("; outside the allocator as 1 earlier job measured")


def test_a_job_counts_once_however_often_it_probes() -> None:
    cluster = after_probes("first", MeasuredOverhead())
    assert len(cluster.status["probes"]) > 1
    assert cluster.measured_overhead is not None
    assert len(cluster.measured_overhead.jobs) == 1


def test_it_is_remembered_after_the_status_is_written_and_again_after_a_restart_in_between() -> None:
    cluster = cluster_of("first", MeasuredOverhead())
    cluster.reconcile()
    (run,) = cluster.runs()
    cluster.start(run)
    cluster.tick(20.0)
    cluster.finish(run)
    decision = cluster.step(cut=1)
    assert decision.measured_overhead is not None
    assert cluster.status["probes"][0]["verdict"] == "succeeded"
    assert cluster.measured_overhead == MeasuredOverhead()
    cluster.reconcile()
    assert cluster.measured_overhead == newest_of([decision.measured_overhead])


@pytest.mark.parametrize("known", [None, newest_of(JobOverhead(2**40, f"job-{n}", GIB) for n in range(MOST_JOBS))])
def test_where_nobody_keeps_it_or_all_are_newer_nothing_is_asked_for(known: MeasuredOverhead | None) -> None:
    assert after_probes("first", known).measured_overhead == known


def test_a_virtual_gpu_neither_learns_nor_leaves_anything() -> None:
    virtual = {**CUDA, "device": "virtual"}
    known = newest_of([JobOverhead(1, "another", 400 * MIB)])
    before = cluster_of("first", known, resources=virtual)
    before.reconcile()
    assert "earlier job" not in condition(before, "Predicted")["message"]


def test_an_emulated_gpu_neither_learns_nor_leaves_anything() -> None:
    emulated = {**CUDA, "device": "emulated"}
    known = newest_of([JobOverhead(1, "another", 400 * MIB)])
    before = cluster_of("first", known, resources=emulated)
    assert expected_outside(before) == 500 * MIB
    assert after_probes("first", known, resources=emulated).measured_overhead == known


def test_impossible_measurements_are_ignored() -> None:
    known = newest_of(JobOverhead(n, f"job-{n}", size) for n, size in enumerate((1, 60 * GIB, 2**59)))
    assert expected_outside(cluster_of("first", known)) == 500 * MIB


def test_a_job_that_is_over_writes_nothing_again() -> None:
    cluster = after_probes("first", MeasuredOverhead())
    (run,) = cluster.runs(RunKind.TRAIN)
    cluster.finish(run)
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"
    forgotten = replace(cluster.observe(), measured_overhead=MeasuredOverhead())
    assert decide(cluster.job, forgotten, cluster.now).measured_overhead is None


def test_an_attempt_without_probes_leaves_something_too() -> None:
    cluster = after_probes("first", MeasuredOverhead(), tuning={"mode": "Fixed", "plan": "bf16-z1-full-mb1x16"})
    (run,) = cluster.runs(RunKind.TRAIN)
    cluster.finish(run)
    cluster.reconcile()
    assert cluster.measured_overhead is not None
    assert len(cluster.measured_overhead.jobs) == 1


def test_the_product_of_nodes_that_differ_is_none() -> None:
    assert only_product([Node("a", "x"), Node("b", "x"), Node("c")]) == "x"
    assert only_product([Node("a", "x"), Node("b", "y")]) == only_product([]) == ""
