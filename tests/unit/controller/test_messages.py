"""Messages about a job are the same on a cluster and on one machine, and right on both."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
from cluster_situations import SAVED, die, edit, launched, probed
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.status import Status
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.messages import predicted_memory
from memtune.memory.prediction import Interval
from memtune.units import GIB, MIB
from memtune.wire.report import Ending, Memory

CLUSTERS_OWN = re.compile(r"\b(pods?|kube\w+|clusters?|namespaces?|operators?|labels?|spec\.suspend)\b", re.IGNORECASE)


def suspended(cluster: SimulatedCluster) -> None:
    edit(cluster, suspend=True)
    edit(cluster, suspend=False)


def resumed_too_soon(cluster: SimulatedCluster) -> None:
    for pod in cluster.pods.values():
        pod.is_stuck = True
    suspended(cluster)
    assert "waiting until" in cluster.status["message"]


def gone(cluster: SimulatedCluster) -> None:
    cluster.pods.clear()
    cluster.reconcile()


def killed(cluster: SimulatedCluster) -> None:
    edit(cluster, "retry", max_oom_retries=0)
    for pod in cluster.pods.values():
        if pod.is_running:
            cluster.end(pod, 137)
    cluster.reconcile()
    cluster.tick(20.0)
    assert "host memory" in cluster.status["message"]


def too_long(cluster: SimulatedCluster) -> None:
    cluster.tick(500.0)
    edit(cluster, active_deadline_seconds=400)


def trained(cluster: SimulatedCluster) -> None:
    (run,) = [run for run in cluster.runs() if "train" in run]
    cluster.finish(run)
    cluster.reconcile()


def out_of_memory(cluster: SimulatedCluster) -> None:
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"trained_samples": 455, "total_samples": 455}, "has trained to its end, 455 of 455 samples"),
        (
            {"trained_samples": 240, "total_samples": 455},
            "has ended well after 240 of 455 samples, where its script ended the training",
        ),
        (
            {"trained_samples": 910, "total_samples": 455},
            "has trained to its end, 910 samples where the training has 455",
        ),
        ({"trained_samples": 240}, "has ended well after 240 samples"),
        ({}, "has ended well,"),
    ],
)
def test_only_a_complete_training_is_called_complete(variables: dict[str, int], words: str) -> None:
    cluster = launched()
    (run,) = [run for run in cluster.runs() if "train" in run]
    cluster.finish(run, **variables)
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"
    assert words in cluster.status["message"]
    assert cluster.status["trainedSamples"] == variables.get("trained_samples", 0)
    assert cluster.status["totalSamples"] == variables.get("total_samples", 0)


@pytest.mark.parametrize(("own", "ends"), [(None, ""), (64, "before"), (3, "after")])
def test_a_script_batch_other_than_the_jobs_is_reported(own: int | None, ends: str) -> None:
    cluster = launched()
    (run,) = [run for run in cluster.runs() if "train" in run]
    batch = cluster.job.spec.training.global_batch_size
    cluster.finish(run, own_batch=own or batch)
    cluster.reconcile()
    assert cluster.status["ownBatch"] == (own or 0)
    expected = (
        f"takes the {batch} samples of training.globalBatchSize, the script's own numbers make it {own}; a "
        f"learning-rate schedule computed from those ends {ends} the training: set globalBatchSize {own}, or compute "
        "it from $MEMTUNE_GLOBAL_BATCH"
    )
    assert cluster.status["message"].endswith(expected) is bool(ends)


@pytest.mark.parametrize("happens", [suspended, resumed_too_soon, gone, killed, too_long, trained, out_of_memory])
def test_nothing_that_only_a_cluster_has_is_named(happens: Callable[[SimulatedCluster], None]) -> None:
    cluster = launched()
    happens(cluster)
    status = cluster.status
    said = [each["message"] for each in (*status["conditions"], *status["probes"], *status["attempts"])]
    assert [each for each in (*cluster.events, *said, status["message"]) if CLUSTERS_OWN.search(each)] == []


def test_memory_that_a_rehearsal_takes_away_is_announced_with_every_attempt() -> None:
    shrink = {"afterStep": 12, "by": "70%"}
    cluster = launched(make_job(resources={"device": "virtual", "gpuMemory": "80Gi", "shrink": shrink}))
    die(cluster, Ending.DEVICE_OOM, 97, **SAVED)
    told = [text for text in cluster.events if "trains on" in text]
    loss = "; resources.shrink takes 70% of the GPU's memory after step 12"
    assert len(told) == 2
    assert all(text.endswith(loss) for text in told), told


def test_a_peak_before_the_loss_of_memory_is_compared_with_the_whole_gpu() -> None:
    cluster = launched(make_job(resources={"device": "virtual", "gpuMemory": "80Gi"}))
    (run,) = [run for run in cluster.runs() if "train" in run]
    cluster.finish(run, memory=Memory(device_total_bytes=40 * GIB, peak_reserved_bytes=60 * GIB))
    cluster.reconcile()
    assert "measured 60.0 GiB (predicted " in cluster.status["message"]
    assert ") before the GPU had only 40.0 GiB, " in cluster.status["message"]


WARNED = "the script saves outside of checkpoint.path, where no relaunch finds it"


def test_advice_for_the_script_is_an_event_and_in_the_status() -> None:
    cluster = launched()
    die(cluster, Ending.SUCCEEDED, 0, warnings=WARNED)
    (event,) = [each for each in cluster.events if "ScriptWarning" in each]
    assert event.endswith(f": {WARNED}")
    assert cluster.status["attempts"][0]["message"] == WARNED
    assert cluster.status["message"].endswith(f"; {WARNED}")
    assert [each for each in cluster.events if WARNED in each] == [event], "one output has all events"


def test_a_run_that_fails_keeps_its_own_message_beside_the_warning() -> None:
    cluster = launched()
    die(cluster, Ending.DEVICE_OOM, 85, message="CUDA out of memory", warnings=WARNED, **SAVED)
    assert cluster.status["attempts"][0]["message"] == "CUDA out of memory"
    assert [each for each in cluster.events if "ScriptWarning" in each and each.endswith(f": {WARNED}")]


def test_a_script_batch_is_reported_when_the_first_probe_ends() -> None:
    cluster = probed(make_job(), own_batch=3)
    told = [each for each in cluster.events if "ScriptWarning" in each]
    assert len(told) == 1, told
    assert "the script's own numbers make it 3; a learning-rate schedule" in told[0]


@pytest.mark.parametrize(
    ("needed", "expected"),
    [
        (Interval(48 * MIB, 52 * MIB, 56 * MIB), "predicted to take 69 of 64 MiB"),
        (
            Interval(48 * MIB, 58 * MIB, 70 * MIB),
            "predicted to take 69 of 64 MiB and to need 58 (48 to 70): it fits with a probability of 62%",
        ),
    ],
)
def test_a_plan_that_may_fit_says_what_it_needs(needed: Interval, expected: str) -> None:
    taken = Interval(60 * MIB, 69 * MIB, 80 * MIB)
    knowledge = knowledge_of(make_job(), Status(), None)
    prediction = dataclasses.replace(knowledge.predict(knowledge.plans[0]), device=taken, needed=needed)
    assert predicted_memory(prediction, 64 * MIB, 0.06) == expected
