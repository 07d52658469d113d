"""Host memory: which plans with offload the template's limit allows, and what their pods request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_situations import SAVED, condition, die, last, launched, probed
from simulated_cluster import SimulatedCluster
from small_jobs import make_job, template

from memtune.api.job import Job
from memtune.api.status import Status
from memtune.controller.host_requests import host_need
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.observation import PodCondition
from memtune.planning.knowledge import PlanKnowledge
from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune.wire.report import Ending
from memtune.wire.run import RunKind

OPTIMIZER = Plan.parse("bf16-z1-full-mb1x16-oopt")


def offloading(*offloads: str, **resources: Any) -> Job:
    """Return a job that may offload 4.1 GiB of optimizer, in a pod of these resources that needs 6.6 GiB."""
    space = {"zeroStages": [1], "checkpointing": ["full"], "backends": ["deepspeed"], "offload": list(offloads)}
    tuning = {"space": space, "objectives": ["memory"]}
    pods = template(**{kind: {"memory": size} for kind, size in resources.items()})
    return make_job(tuning=tuning, template=pods, resources={"gpuMemory": "8Gi"})


def knowledge_of_job(job: Job) -> PlanKnowledge:
    return knowledge_of(job, Status(), None)


NEEDED = host_need(knowledge_of_job(offloading("optimizer")), OPTIMIZER, "no")


def test_the_numbers_of_these_tests_are_those_of_the_model() -> None:
    assert 6.5 * GIB < NEEDED < 6.7 * GIB


def asked(cluster: SimulatedCluster, kind: RunKind) -> set[int]:
    return {pod.host_request_bytes for pod in cluster.pods.values() if f"-{kind}-" in pod.run}


def test_a_plan_that_offloads_more_than_the_limit_is_dropped_and_says_so() -> None:
    tight = knowledge_of_job(offloading("none", "optimizer", limits="2Gi"))
    assert {candidate.plan.offload for candidate in tight.candidates(())} == {Offload.NONE}
    dropped = {drop.reason for drop in tight.ranking.dropped if drop.plan.offload is Offload.OPTIMIZER}
    needs = "needs 4.1 GiB of host memory for what it offloads; limits.memory of the template is 2.0 GiB"
    assert needs in dropped
    # The pod is predicted to need more than 5 GiB, but only the offloaded part is certain.
    loose = knowledge_of_job(offloading("none", "optimizer", limits="5Gi"))
    assert OPTIMIZER in {candidate.plan for candidate in loose.candidates(())}


def test_a_host_too_small_for_every_plan_says_what_to_raise() -> None:
    cluster = SimulatedCluster(offloading("optimizer", limits="2Gi"))
    cluster.reconcile()
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "NothingFits"
    for part in (
        f"the smallest plan, {OPTIMIZER}, needs 4.1 GiB of host memory for what it offloads",
        f"raise limits.memory of the template to 6.6 GiB, which {OPTIMIZER} is predicted to need",
        "allow none in tuning.space.offload: bf16-z1-full-mb1x16 is predicted to take 6.3 GiB of each GPU",
    ):
        assert part in failed["message"]


@pytest.mark.parametrize("limit", ["2Gi", "64Gi"])
def test_after_an_out_of_memory_no_plan_follows_that_the_host_cannot_hold(limit: str) -> None:
    cluster = launched(offloading("none", "optimizer", requests="1Gi", limits=limit))
    smallest = str(knowledge_of_job(offloading("none")).smallest())
    # An attempt on the smallest plan without offload, which exceeds the GPU after all.
    cluster.status["attempts"][-1]["plan"] = cluster.status["plan"]["name"] = smallest
    cluster.status["probes"] = []
    for pod in cluster.pods.values():
        pod.plan = smallest
    cluster.usable_bytes = int(0.6 * cluster.truth(smallest))
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
    if limit == "2Gi":
        assert condition(cluster, "Failed")["reason"] == "LadderExhausted"
        return
    plan = Plan.parse(last(cluster)["plan"])
    assert plan.offload is Offload.OPTIMIZER
    assert last(cluster)["hostRequestBytes"] == host_need(knowledge_of_job(cluster.job), plan, "no")


@pytest.mark.parametrize(
    ("resources", "wanted"),
    [
        ({}, NEEDED),
        ({"requests": "1Gi", "limits": "64Gi"}, NEEDED),
        ({"requests": "1Gi", "limits": "5Gi"}, 5 * GIB),
        ({"requests": "32Gi"}, 0),
        # Without a request, Kubernetes uses the limit, which is already higher.
        ({"limits": "64Gi"}, 0),
    ],
)
def test_pods_of_offloading_plans_request_their_host_memory_from_the_start(
    resources: dict[str, str], wanted: int
) -> None:
    cluster = SimulatedCluster(offloading("optimizer", **resources))
    cluster.reconcile()
    assert asked(cluster, RunKind.PROBE) == {wanted}
    cluster = probed(cluster.job)
    assert asked(cluster, RunKind.TRAIN) == {wanted}
    assert last(cluster).get("hostRequestBytes", 0) == wanted
    assert any("of host memory" in event for event in cluster.events) == bool(wanted)


def test_pods_of_other_plans_request_the_memory_of_the_template() -> None:
    cluster = launched()
    assert asked(cluster, RunKind.TRAIN) == {0}
    assert last(cluster)["hostRequestBytes"] == 0


def test_a_kill_at_a_predicted_limit_still_raises_the_request_once() -> None:
    cluster = launched(offloading("optimizer", requests="1Gi", limits="64Gi"))
    for _ in range(2):
        for run in cluster.runs(RunKind.TRAIN):
            cluster.start(run)
        (pod,) = (pod for pod in cluster.pods.values() if pod.is_running)
        cluster.end(pod, 137, None)
        pod.exit_reason = "OOMKilled"
        cluster.reconcile()
        cluster.tick(60.0)
    first, second = cluster.status["attempts"]
    assert (first["hostRequestBytes"], second["rung"]) == (NEEDED, "host-memory")
    assert second["hostRequestBytes"] == int(1.5 * NEEDED)
    assert condition(cluster, "Failed")["reason"] == "HostMemory"


def test_a_plan_with_less_offload_requests_its_own_prediction() -> None:
    cluster = launched(offloading("none", "optimizer", requests="1Gi", limits="5Gi"))
    assert last(cluster)["hostRequestBytes"] == 5 * GIB
    die(cluster, Ending.HOST_OOM, 86, **SAVED)
    assert last(cluster)["rung"].startswith("less-offload")


def test_less_offload_keeps_the_optimizer_even_where_the_space_opens_others() -> None:
    space = {"zeroStages": [1], "checkpointing": ["full"], "backends": ["deepspeed"], "offload": ["none", "optimizer"]}
    opened = make_job(
        tuning={"space": {**space, "optimizer": ["adamw", "sgd"]}, "objectives": ["memory"]},
        template=template(requests={"memory": "1Gi"}, limits={"memory": "5Gi"}),
        resources={"gpuMemory": "8Gi"},
        integration="sdk",
    )
    cluster = launched(opened)
    before = str(OPTIMIZER)
    cluster.status["attempts"][-1]["plan"] = cluster.status["plan"]["name"] = before
    cluster.status["attempts"][-1]["hostRequestBytes"] = 5 * GIB
    for pod in cluster.pods.values():
        pod.plan = before
    die(cluster, Ending.HOST_OOM, 86, **SAVED)
    assert last(cluster)["rung"] == "less-offload"
    plan = Plan.parse(last(cluster)["plan"])
    assert (plan.offload, plan.optimizer) == (Offload.NONE, OPTIMIZER.optimizer)
    assert (Plan.parse(last(cluster)["plan"]).offload, last(cluster)["hostRequestBytes"]) == (Offload.NONE, 0)


def test_a_probe_that_waits_for_memory_says_how_much_it_asks_for_beside_the_schedulers_words() -> None:
    cluster = SimulatedCluster(offloading("optimizer"))
    cluster.reconcile()
    for pod in cluster.pods.values():
        words = "0/2 nodes are available: 2 Insufficient memory."
        pod.conditions = (PodCondition("PodScheduled", "False", "Unschedulable", words),)
    cluster.tick(60.0)
    plan = cluster.status["probes"][0]["plan"]
    text = f"Unschedulable: {words} (each pod asks for 6.6 GiB of host memory, for {plan})"
    assert condition(cluster, "Stalled")["message"] == text
    assert cluster.status["message"] == f"stalled: {text}"


def test_the_request_of_a_pending_probe_is_always_shown() -> None:
    cluster = SimulatedCluster(offloading("optimizer"))
    cluster.reconcile()
    for pod in cluster.pods.values():
        words = "0/2 nodes are available: preemption is not helpful for scheduling."
        pod.conditions = (PodCondition("PodScheduled", "False", "Unschedulable", words),)
    cluster.tick(60.0)
    assert "(each pod asks for 6.6 GiB of host memory, for " in condition(cluster, "Stalled")["message"]


def test_no_plan_of_an_unknown_model_is_dropped() -> None:
    knowledge = knowledge_of_job(offloading("optimizer", limits="2Gi"))
    guessed = replace(knowledge, workload=replace(knowledge.workload, assumed=True))
    assert "host memory" not in " ".join(drop.reason for drop in guessed.ranking.dropped)
