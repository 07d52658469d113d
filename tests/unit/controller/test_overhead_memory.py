"""What a job leaves to the next one of its kind, and how much better that one is predicted before its first probe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from decided import condition, probed
from simulated_cluster import OUTSIDE_BYTES, SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.controller import Node, decide
from memtune.controller.snapshot import only_product
from memtune.memory.measured_overhead import MOST_JOBS, JobOutside, Remembered, remembered
from memtune.units import GIB, MIB
from memtune.wire.run import RunKind

CUDA = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi", "gpuProduct": "h100-80gb"}


def job_of(uid: str, **changes: Any) -> Job:
    job = make_job(**{"resources": CUDA, **changes})
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid})})


def cluster_of(uid: str, known: Remembered | None, **changes: Any) -> SimulatedCluster:
    return SimulatedCluster(job_of(uid, **changes), measured=known)


def after_probes(uid: str, known: Remembered | None, **changes: Any) -> SimulatedCluster:
    """A cluster of a job that has measured and launched."""
    return probed(job_of(uid, **changes), measured=known)


def expected_outside(cluster: SimulatedCluster) -> int:
    """What is predicted outside of the allocator, before any probe."""
    cluster.reconcile()
    assert not any(probe.get("endedAt") for probe in cluster.status["probes"])
    parts = {part["name"]: part["expected"] for part in cluster.status["prediction"]["components"]}
    found: int = parts["context"]
    return found


def test_the_second_job_starts_from_what_the_first_measured() -> None:
    first = after_probes("first", Remembered())
    assert first.measured is not None
    assert [each.outside_bytes for each in first.measured.jobs] == [OUTSIDE_BYTES]
    assert "earlier job" not in condition(first, "Predicted")["message"], "its own probes are no earlier job"
    blind, second = cluster_of("blind", Remembered()), cluster_of("second", first.measured)
    assert expected_outside(blind) == 500 * MIB
    assert expected_outside(second) == OUTSIDE_BYTES
    assert condition(second, "Predicted")["message"].endswith("; outside the allocator as 1 earlier job measured")


def test_a_job_counts_once_however_often_it_probes() -> None:
    cluster = after_probes("first", Remembered())
    assert len(cluster.status["probes"]) > 1
    assert cluster.measured is not None
    assert len(cluster.measured.jobs) == 1


def test_it_is_remembered_after_the_status_is_written_and_again_after_a_restart_in_between() -> None:
    cluster = cluster_of("first", Remembered())
    cluster.reconcile()
    (run,) = cluster.runs()
    cluster.start(run)
    cluster.tick(20.0)
    cluster.finish(run)
    decision = cluster.step(cut=1)
    assert decision.measured is not None
    assert cluster.status["probes"][0]["verdict"] == "succeeded"
    assert cluster.measured == Remembered()
    cluster.reconcile()
    assert cluster.measured == remembered([decision.measured])


@pytest.mark.parametrize("known", [None, remembered(JobOutside(2**40, f"job-{n}", GIB) for n in range(MOST_JOBS))])
def test_where_nobody_keeps_it_or_all_are_newer_nothing_is_asked_for(known: Remembered | None) -> None:
    assert after_probes("first", known).measured == known


def test_a_virtual_gpu_neither_learns_nor_leaves_anything() -> None:
    virtual = {**CUDA, "device": "virtual"}
    known = remembered([JobOutside(1, "another", 400 * MIB)])
    before = cluster_of("first", known, resources=virtual)
    before.reconcile()
    assert "earlier job" not in condition(before, "Predicted")["message"]


def test_an_emulated_gpu_neither_learns_nor_leaves_anything() -> None:
    emulated = {**CUDA, "device": "emulated"}
    known = remembered([JobOutside(1, "another", 400 * MIB)])
    before = cluster_of("first", known, resources=emulated)
    assert expected_outside(before) == 500 * MIB
    assert after_probes("first", known, resources=emulated).measured == known


def test_what_cannot_be_true_is_passed_over() -> None:
    known = remembered(JobOutside(n, f"job-{n}", size) for n, size in enumerate((1, 60 * GIB, 2**59)))
    assert expected_outside(cluster_of("first", known)) == 500 * MIB


def test_a_job_that_is_over_writes_nothing_again() -> None:
    cluster = after_probes("first", Remembered())
    (run,) = cluster.runs(RunKind.TRAIN)
    cluster.finish(run)
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"
    forgotten = replace(cluster.observe(), remembered=Remembered())
    assert decide(cluster.job, forgotten, cluster.now).measured is None


def test_a_train_run_without_probes_leaves_something_too() -> None:
    cluster = after_probes("first", Remembered(), tuning={"mode": "Fixed", "plan": "bf16-z1-full-mb1x16"})
    (run,) = cluster.runs(RunKind.TRAIN)
    cluster.finish(run)
    cluster.reconcile()
    assert cluster.measured is not None
    assert len(cluster.measured.jobs) == 1


def test_the_product_of_nodes_that_differ_is_none() -> None:
    assert only_product([Node("a", "x"), Node("b", "x"), Node("c")]) == "x"
    assert only_product([Node("a", "x"), Node("b", "y")]) == only_product([]) == ""
