"""Pods that are gone, and nobody saw how: what they may have cost and trained counts, and no more than that."""

from __future__ import annotations

from typing import Any

import pytest
from decided import condition, last
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

NIGHT_SECONDS = 8 * 3600.0


def vanish(cluster: SimulatedCluster, index: int = 0) -> None:
    """A pod is gone from one moment to the next, with its node or by force."""
    pod = next(pod for pod in cluster.pods.values() if pod.index == index)
    cluster.end(pod, 137)
    del cluster.pods[pod.name]


def probing(**changes: Any) -> SimulatedCluster:
    cluster = SimulatedCluster(make_job(**changes))
    cluster.reconcile()
    return cluster


def launching(nodes: int = 1) -> SimulatedCluster:
    """A job that was given its plan and has nowhere to save; its pod is there and waits."""
    plan = f"bf16-z1-full-mb4x{4 // nodes}"
    cluster = probing(nodes=nodes, checkpoint=None, tuning={"mode": "Fixed", "plan": plan})
    cluster.tick(30.0)
    assert cluster.runs() == ["tiny-train-1"]
    return cluster


def test_a_night_without_an_operator_costs_what_a_probe_may_take() -> None:
    cluster = probing(tuning={"maxGpuSeconds": 1000})
    cluster.start("tiny-probe-1")
    cluster.reconcile()
    cluster.tick(NIGHT_SECONDS, blind=True)
    vanish(cluster)
    cluster.reconcile()
    assert 500 <= cluster.status["gpuSecondsSpent"] <= 510
    cluster.tick(60.0)
    assert (cluster.status["phase"], len(cluster.status["probes"])) == ("Probing", 2)


def test_a_node_that_fell_silent_in_the_night_costs_no_more() -> None:
    cluster = probing(tuning={"maxGpuSeconds": 1000})
    cluster.start("tiny-probe-1")
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    pod.node_lost, pod.dark_since = True, cluster.now
    cluster.tick(NIGHT_SECONDS, blind=True)
    cluster.reconcile()
    assert 500 <= cluster.status["gpuSecondsSpent"] <= 510


def test_a_pod_that_ran_and_went_before_the_others_began_is_paid_for() -> None:
    cluster = probing(nodes=2, retry={"maxDisruptions": 10})
    for _ in range(10):
        waiting = [pod for pod in cluster.pods.values() if pod.index == 0 and pod.is_pending]
        if not waiting:
            break
        waiting[0].conditions, waiting[0].started_at = (), cluster.now
        cluster.tick(480.0)
        vanish(cluster)
        cluster.tick(60.0)
    assert 480 <= cluster.probe_gpu_seconds <= cluster.status["gpuSecondsSpent"]
    assert cluster.probe_gpu_seconds <= cluster.job.max_gpu_seconds
    assert condition(cluster, "Failed")["reason"] == "NothingMeasured"


def test_a_probe_that_came_and_went_unseen_is_paid_for_as_the_longest() -> None:
    cluster = probing(tuning={"maxGpuSeconds": 1000})
    cluster.start("tiny-probe-1")
    cluster.tick(450.0, blind=True)
    vanish(cluster)
    cluster.reconcile()
    assert 500 <= cluster.status["gpuSecondsSpent"] <= 510


def test_a_probe_that_was_taken_away_before_it_began_is_free() -> None:
    cluster = probing(tuning={"maxGpuSeconds": 1000})
    cluster.tick(450.0)
    vanish(cluster)
    cluster.reconcile()
    assert cluster.status.get("gpuSecondsSpent", 0) == 0


def test_a_training_that_came_and_went_unseen_does_not_begin_again_unasked() -> None:
    cluster = launching()
    cluster.start("tiny-train-1")
    cluster.tick(NIGHT_SECONDS, blind=True)
    vanish(cluster)
    cluster.reconcile()
    assert (last(cluster)["trained"], last(cluster)["checkpoint"]) == (True, "unknown")
    assert (cluster.status["phase"], condition(cluster, "Failed")["reason"]) == ("Failed", "NotResumable")


@pytest.mark.parametrize("goes", [(1,), (0, 1), (1, 0)])
def test_a_training_of_which_one_pod_never_ran_begins_anew(goes: tuple[int, ...]) -> None:
    cluster = launching(nodes=2)
    first = next(pod for pod in cluster.pods.values() if pod.index == 0)
    first.conditions, first.started_at = (), cluster.now
    cluster.tick(60.0)
    for index in goes:
        vanish(cluster, index)
    cluster.tick(60.0)
    assert (last(cluster)["number"], last(cluster)["resume"]) == (2, "no"), cluster.status["message"]


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_training_that_was_taken_away_before_it_began_begins_anew(seconds: float) -> None:
    cluster = launching()
    cluster.tick(seconds, blind=True)
    cluster.reconcile()
    vanish(cluster)
    cluster.tick(60.0)
    assert (last(cluster)["number"], last(cluster)["resume"]) == (2, "no")
    assert cluster.status["attempts"][0]["trained"] is False
