"""Pods that vanished unwatched are charged for what they may have cost and trained, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_situations import condition, last
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

NIGHT_SECONDS = 8 * 3600.0


def vanish(cluster: SimulatedCluster, index: int = 0) -> None:
    """Remove a pod at once, as with its node or by force."""
    pod = next(pod for pod in cluster.pods.values() if pod.index == index)
    cluster.end(pod, 137)
    del cluster.pods[pod.name]


def probing(**changes: Any) -> SimulatedCluster:
    cluster = SimulatedCluster(make_job(**changes))
    cluster.reconcile()
    return cluster


def launching(nodes: int = 1) -> SimulatedCluster:
    """Return a job with a given plan and no checkpoint path, whose pod is waiting."""
    plan = f"bf16-z1-full-mb4x{4 // nodes}"
    cluster = probing(nodes=nodes, checkpoint=None, tuning={"mode": "Fixed", "plan": plan})
    cluster.tick(30.0)
    assert cluster.runs() == ["tiny-train-1"]
    return cluster


def test_a_long_absence_of_the_operator_costs_at_most_one_probe() -> None:
    cluster = probing(tuning={"maxGpuSeconds": 1000})
    cluster.start("tiny-probe-1")
    cluster.reconcile()
    cluster.tick(NIGHT_SECONDS, blind=True)
    vanish(cluster)
    cluster.reconcile()
    assert 500 <= cluster.status["gpuSecondsSpent"] <= 510
    cluster.tick(60.0)
    assert (cluster.status["phase"], len(cluster.status["probes"])) == ("Probing", 2)


def test_a_silent_node_during_an_absence_costs_no_more() -> None:
    cluster = probing(tuning={"maxGpuSeconds": 1000})
    cluster.start("tiny-probe-1")
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    pod.node_lost, pod.dark_since = True, cluster.now
    cluster.tick(NIGHT_SECONDS, blind=True)
    cluster.reconcile()
    assert 500 <= cluster.status["gpuSecondsSpent"] <= 510


def test_a_pod_that_ended_before_the_others_began_is_charged() -> None:
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


def test_an_unseen_probe_is_charged_the_maximum() -> None:
    cluster = probing(tuning={"maxGpuSeconds": 1000})
    cluster.start("tiny-probe-1")
    cluster.tick(450.0, blind=True)
    vanish(cluster)
    cluster.reconcile()
    assert 500 <= cluster.status["gpuSecondsSpent"] <= 510


def test_a_probe_deleted_before_it_began_is_free() -> None:
    cluster = probing(tuning={"maxGpuSeconds": 1000})
    cluster.tick(450.0)
    vanish(cluster)
    cluster.reconcile()
    assert cluster.status.get("gpuSecondsSpent", 0) == 0


def test_an_unseen_training_is_not_restarted_without_consent() -> None:
    cluster = launching()
    cluster.start("tiny-train-1")
    cluster.tick(NIGHT_SECONDS, blind=True)
    vanish(cluster)
    cluster.reconcile()
    assert (last(cluster)["trained"], last(cluster)["checkpoint"]) == (True, "unknown")
    assert (cluster.status["phase"], condition(cluster, "Failed")["reason"]) == ("Failed", "NotResumable")


@pytest.mark.parametrize("goes", [(1,), (0, 1), (1, 0)])
def test_a_training_with_a_pod_that_never_ran_begins_anew(goes: tuple[int, ...]) -> None:
    cluster = launching(nodes=2)
    first = next(pod for pod in cluster.pods.values() if pod.index == 0)
    first.conditions, first.started_at = (), cluster.now
    cluster.tick(60.0)
    for index in goes:
        vanish(cluster, index)
    cluster.tick(60.0)
    assert (last(cluster)["number"], last(cluster)["resume"]) == (2, "no"), cluster.status["message"]


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_training_deleted_before_it_began_begins_anew(seconds: float) -> None:
    cluster = launching()
    cluster.tick(seconds, blind=True)
    cluster.reconcile()
    vanish(cluster)
    cluster.tick(60.0)
    assert (last(cluster)["number"], last(cluster)["resume"]) == (2, "no")
    assert cluster.status["attempts"][0]["trained"] is False
