"""Jobs with a factory: traced before prediction, once per namespace, and probed without a trace if that fails."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cluster_situations import SAVED, condition, die, probed
from simulated_cluster import SimulatedCluster
from small_jobs import factory_job
from small_traces import small_trace

from memtune.api.job import Job
from memtune.controller import decide
from memtune.controller.observation import PodCondition
from memtune.units import GIB
from memtune.wire.report import Ending
from memtune.wire.trace_message import pack

TRACE = pack(small_trace())


def cluster_of(job: Job | None = None, **changes: Any) -> SimulatedCluster:
    return SimulatedCluster(job or factory_job(), **{"built": TRACE, "usable_bytes": 8 * GIB, **changes})


def traced(cluster: SimulatedCluster, exit_code: int = 0, last_words: str = TRACE, **changes: Any) -> None:
    """Start and end the trace run."""
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    cluster.start(pod.run)
    cluster.tick(5.0)
    pod.last_words = last_words
    cluster.end(pod, exit_code)
    for name, value in changes.items():
        setattr(pod, name, value)
    cluster.reconcile()


def test_a_trace_run_is_recorded_before_its_pod_is_created_and_has_no_service() -> None:
    cluster = cluster_of()
    first = decide(cluster.job, cluster.observe(), cluster.now)
    assert (first.status.phase, first.create) == ("Predicting", ())
    assert first.status.trace is not None
    cluster.write(first, 0)
    cluster.reconcile()
    assert cluster.posted == ["tiny-trace-1-0"]
    assert cluster.services == {}
    assert cluster.status["probes"] == []


def test_its_trace_is_remembered_its_pod_goes_and_probes_begin() -> None:
    cluster = cluster_of()
    traced(cluster)
    assert cluster.remembered == TRACE
    assert "tiny-trace-1-0" not in cluster.pods
    assert cluster.status["trace"]["verdict"] == "succeeded"
    assert cluster.status["phase"] == "Probing"
    assert cluster.status["prediction"]["deviceBytes"]["expected"] > 0
    assert "Small, 6,144 parameters, 4 repeated blocks" in cluster.status["trace"]["message"]


def test_the_next_job_of_the_same_factory_starts_without_a_trace_run() -> None:
    cluster = cluster_of(remembered=TRACE)
    cluster.reconcile()
    assert cluster.posted == ["tiny-probe-1-0"]
    assert cluster.status.get("trace") is None


def test_without_a_cache_the_pod_keeps_the_trace() -> None:
    cluster = cluster_of()
    cluster.is_forgetful = True
    traced(cluster)
    assert "tiny-trace-1-0" in cluster.pods
    assert cluster.status["phase"] == "Probing"


def test_the_pod_that_alone_keeps_a_trace_goes_when_its_job_is_over() -> None:
    cluster = cluster_of(factory_job(tuning={"mode": "PredictOnly"}))
    cluster.is_forgetful = True
    traced(cluster)
    assert (cluster.status["phase"], cluster.pods) == ("Succeeded", {})


def test_a_job_keeps_its_own_trace_though_its_namespace_has_another() -> None:
    cluster = cluster_of()
    cluster.is_forgetful = True
    traced(cluster)
    cluster.remembered = pack(replace(small_trace(), model="Another"))
    decision = decide(cluster.job, cluster.observe(), cluster.now)
    assert decision.trace == TRACE
    assert "tiny-trace-1-0" not in [deletion.name for deletion in decision.delete]


def test_a_trace_of_another_version_is_not_cached() -> None:
    cluster = cluster_of()
    cluster.is_forgetful = True
    traced(cluster)
    cluster.pods["tiny-trace-1-0"].last_words = "of another version"
    assert decide(cluster.job, cluster.observe(), cluster.now).trace == ""
    cluster.reconcile()
    assert "tiny-trace-1-0" not in cluster.pods
    assert cluster.status["trace"]["number"] == 2


def test_garbage_in_the_memory_is_traced_over() -> None:
    cluster = cluster_of(remembered="garbage")
    traced(cluster)
    assert (cluster.remembered, cluster.status["phase"]) == (TRACE, "Probing")


def test_a_job_with_a_factory_comes_to_its_attempt_and_recovers() -> None:
    cluster = probed(factory_job(), built=TRACE)
    assert cluster.status["phase"] == "Running"
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
    first, second = cluster.status["attempts"]
    assert (first["verdict"], second["resumedSamples"]) == ("device-oom", SAVED["checkpoint_samples"])
    assert second["predictedBytes"] < first["predictedBytes"]


@pytest.mark.parametrize(
    ("exit_code", "last_words", "changes", "verdict", "expected"),
    [
        (2, "factory 'train:build' raised RuntimeError: no such checkpoint", {}, "user-error", "no such checkpoint"),
        (2, "tracing stopped in blocks.0, operator mine::op", {}, "user-error", "blocks.0, operator mine::op"),
        (0, "neither a trace nor a sentence", {}, "user-error", "no trace, or a damaged one"),
        (137, "", {}, "host-oom", "host ran out of memory"),
    ],
)
def test_a_factory_that_cannot_be_traced_is_reported_and_probed_without_a_prediction(
    exit_code: int, last_words: str, changes: dict[str, Any], verdict: str, expected: str
) -> None:
    cluster = cluster_of()
    traced(cluster, exit_code, last_words, **changes)
    assert cluster.status["trace"]["verdict"] == verdict
    predicted = condition(cluster, "Predicted")
    assert (predicted["status"], predicted["reason"]) == ("False", "NotTraced")
    assert expected in predicted["message"]
    (probe,) = cluster.status["probes"]
    assert probe["predictedBytes"] == 0
    assert "prediction" not in cluster.status
    tuned = condition(cluster, "Tuned")
    assert (tuned["status"], tuned["reason"]) == ("False", "Probing")
    assert tuned["message"] == "up to 5 probes may be made; the first one shows how many 1,000 GPU-seconds pay for"


def test_a_length_of_targets_that_an_older_version_took_beside_a_factory_stops_no_probe() -> None:
    job = factory_job()
    training = job.spec.training.model_copy(update={"target_length": 64})
    cluster = cluster_of(job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})}))
    traced(cluster, 2, "tracing stopped")
    assert [probe["predictedBytes"] for probe in cluster.status["probes"]] == [0]


def test_the_first_probes_measurement_becomes_the_prediction() -> None:
    cluster = cluster_of()
    traced(cluster, 2, "it raised")
    for _ in range(2):
        for run in cluster.runs():
            cluster.start(run)
        cluster.tick(20.0)
        for run in cluster.runs():
            cluster.finish(run)
        cluster.tick(20.0)
    measured = [probe["peakBytes"]["device"] for probe in cluster.status["probes"] if probe.get("peakBytes")]
    assert measured
    assert cluster.status["prediction"]["deviceBytes"]["lower"] < 20 * max(measured)
    assert any("ProbeBudget" in event and "1,000 GPU-seconds pay for about 40" in event for event in cluster.events)


def test_a_trace_that_does_not_end_is_ended() -> None:
    cluster = cluster_of()
    cluster.reconcile()
    cluster.start("tiny-trace-1")
    cluster.tick(400.0)
    assert cluster.status["trace"]["verdict"] == "hung"
    assert "tiny-trace-1-0" not in cluster.pods
    assert [probe["number"] for probe in cluster.status["probes"]] == [1]


def test_a_disrupted_trace_run_is_repeated_a_limited_number_of_times() -> None:
    cluster = cluster_of()
    for number in range(1, 5):
        cluster.reconcile()
        assert f"tiny-trace-{number}-0" in cluster.pods
        cluster.start(f"tiny-trace-{number}")
        cluster.reconcile()
        del cluster.pods[f"tiny-trace-{number}-0"]
    cluster.reconcile()
    assert cluster.status["probes"]
    assert condition(cluster, "Predicted")["reason"] == "NotTraced"


def test_an_image_that_cannot_be_pulled_is_waited_for() -> None:
    cluster = cluster_of()
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    pod.conditions = (PodCondition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available"),)
    cluster.reconcile()
    assert condition(cluster, "Stalled")["reason"] == "Unschedulable"
    assert cluster.status["trace"].get("verdict") is None


def test_predicting_alone_needs_the_trace_and_no_more() -> None:
    cluster = cluster_of(factory_job(tuning={"mode": "PredictOnly"}))
    traced(cluster)
    assert (cluster.status["phase"], cluster.posted) == ("Succeeded", ["tiny-trace-1-0"])
    failed = cluster_of(factory_job(tuning={"mode": "PredictOnly"}))
    traced(failed, 2, "it raised")
    assert (failed.status["phase"], condition(failed, "Failed")["reason"]) == ("Failed", "NotTraced")


def test_a_plan_of_the_users_own_is_launched_though_nothing_was_traced() -> None:
    cluster = cluster_of(factory_job(tuning={"mode": "Fixed", "plan": "bf16-z1-full-mb2x8"}))
    traced(cluster, 2, "it raised")
    assert [attempt["plan"] for attempt in cluster.status["attempts"]] == ["bf16-z1-full-mb2x8"]
    assert cluster.status["attempts"][0]["predictedBytes"] == 0


def test_suspending_ends_the_trace_run_and_resuming_makes_another() -> None:
    cluster = cluster_of()
    cluster.reconcile()
    cluster.start("tiny-trace-1")
    spec = cluster.job.spec
    cluster.job = cluster.job.model_copy(update={"spec": spec.model_copy(update={"suspend": True})})
    cluster.reconcile()
    assert cluster.pods == {}
    cluster.job = cluster.job.model_copy(update={"spec": spec})
    cluster.reconcile()
    assert list(cluster.pods) == ["tiny-trace-2-0"]


def test_the_trace_run_of_another_job_is_ignored() -> None:
    cluster = cluster_of()
    cluster.status = json.loads(json.dumps({"trace": {"name": "other-trace-1", "number": 1, "verdict": "user-error"}}))
    cluster.reconcile()
    assert cluster.posted == ["tiny-trace-1-0"]


def test_a_trace_that_was_lost_before_the_launch_is_made_again_for_its_prediction() -> None:
    cluster = probed(factory_job(), built=TRACE)
    # The state before the attempt was recorded.
    cluster.status["attempts"] = []
    cluster.pods.clear()
    cluster.remembered = ""
    cluster.reconcile()
    assert cluster.status["phase"] == "Launching"
    assert cluster.runs() == ["tiny-trace-2"]
    cluster.start("tiny-trace-2")
    cluster.finish("tiny-trace-2")
    cluster.reconcile()
    (attempt,) = cluster.status["attempts"]
    assert attempt["predictedBytes"] > 0
    # A training that already runs needs no prediction.
    cluster.remembered = ""
    cluster.start("tiny-train-1")
    cluster.reconcile()
    assert cluster.runs() == ["tiny-train-1"]
