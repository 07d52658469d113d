"""Decisions in one situation after another, on a simulated cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cluster_situations import condition, last, launched, probed
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.api.status import Status, load_status
from memtune.controller import Blocker, Node, Observed, decide, refuse
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.observation import PodCondition
from memtune.controller.records import fingerprints
from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune.wire.names import short_hash
from memtune.wire.report import Ending


def test_a_run_is_recorded_before_any_of_its_pods_is_created() -> None:
    cluster = SimulatedCluster(make_job())
    first = decide(cluster.job, cluster.observe(), cluster.now)
    assert first.status.phase == "Probing"
    assert len(first.status.probes) == 1
    assert first.create == ()
    cluster.write(first, 0)
    again = decide(cluster.job, cluster.observe(), cluster.now)
    assert [run.number for run in again.create] == [1]
    assert again.status == first.status
    assert again.events == ()


def test_the_happy_path_launches_the_best_measured_plan() -> None:
    cluster = launched()
    assert condition(cluster, "Tuned")["reason"] == "Measured"
    plans = [probe["plan"] for probe in cluster.status["probes"]]
    assert len(set(plans)) == len(plans) > 1, "no plan is probed twice"
    best = max(cluster.status["probes"], key=lambda probe: probe["tokensPerSecond"])
    assert last(cluster)["plan"] == best["plan"] == cluster.status["plan"]["name"]
    for run in cluster.runs():
        cluster.finish(run)
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"
    assert condition(cluster, "Complete")["status"] == "True"
    assert cluster.services == {}


def measure(cluster: SimulatedCluster, /, warnings: str = "", **memory: int) -> None:
    """End the running probe successfully with these memory readings, and a warning of its script."""
    cluster.reconcile()
    for pod in [pod for pod in cluster.pods.values() if not pod.has_ended]:
        cluster.start(pod.run)
        report = cluster.report(pod, Ending.SUCCEEDED)
        cluster.end(pod, 0, replace(report, memory=replace(report.memory, **memory), warnings=warnings))
    cluster.reconcile()


@pytest.mark.parametrize(
    ("tight", "why"),
    [
        ({"alloc_retries": 1}, "too tight: the allocator had to retry"),
        ({"peak_reserved_bytes": int(7.6 * GIB)}, "% free of 6%"),
    ],
)
def test_a_measured_plan_that_was_too_tight_is_not_launched(tight: dict[str, int], why: str) -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxProbes": 1}))
    measure(cluster, warnings="", **tight)
    assert cluster.status["probes"][0]["verdict"] == "succeeded"
    assert condition(cluster, "Failed")["reason"] == "NothingFits"
    message = condition(cluster, "Failed")["message"]
    assert "as measured: tuning.maxProbes allows no more than 1 probe (" in message
    assert f"{why})" in message
    assert "What would help: raise tuning.maxProbes: " in message
    assert " was not tried, and is predicted to take " in message


def test_a_job_whose_plans_were_all_too_tight_has_their_warnings_last() -> None:
    peak = "the peak is that of an evaluation in batches of 64: let the script evaluate in smaller ones"
    cluster = SimulatedCluster(make_job(tuning={"maxProbes": 1}))
    measure(cluster, warnings=peak, alloc_retries=1)
    message = condition(cluster, "Failed")["message"]
    assert ". What would help: raise tuning.maxProbes: " in message
    assert message.endswith(f". Warnings: {peak}")


def test_the_chosen_plan_is_shown_with_those_that_were_too_tight() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxProbes": 2}))
    measure(cluster)
    measure(cluster, alloc_retries=3)
    message = condition(cluster, "Tuned")["message"]
    assert "1 measured plan fits (probe 2 is too tight: the allocator had to retry), and " in message


def test_a_probe_without_the_longest_sequences_teaches_nothing_and_its_plan_must_also_be_predicted_to_fit() -> None:
    knowledge = knowledge_of(make_job(), Status(), None)
    won = {}
    for covered in (True, False):
        cluster = probed(make_job(), 0.4, length_covered=covered)
        assert {probe["lengthCovered"] for probe in cluster.status["probes"]} == {covered}
        won[covered] = Plan.parse(last(cluster)["plan"])
        assert ("without the longest sequences" in condition(cluster, "Tuned")["message"]) is not covered
    assert not knowledge.keeps_headroom(won[True]), (
        "measured at its full length it may be launched against all prediction"
    )
    assert knowledge.keeps_headroom(won[False])
    learned = knowledge_of(cluster.job, load_status(cluster.status), None)
    assert learned.predict(won[False]) == knowledge.predict(won[False])


def test_a_probe_without_the_longest_sequences_measures_the_shared_overhead() -> None:
    # By the width of a job of which nothing was measured none of its plans would be sure to fit, whatever ran.
    resources = {"gpusPerNode": 1, "gpuMemory": "6500Mi", "gpuProduct": "h100-80gb"}
    tuning = {"space": {"zeroStages": [0], "backends": ["deepspeed"]}}
    cluster = probed(make_job(resources=resources, tuning=tuning), 0.8, length_covered=False)
    knowledge = knowledge_of(cluster.job, load_status(cluster.status), None)
    assert knowledge.predict(plan := Plan.parse(last(cluster)["plan"])).job_width_bytes > 0
    assert not knowledge.keeps_headroom(plan)


def test_predict_only_starts_no_pod_and_is_complete() -> None:
    cluster = SimulatedCluster(make_job(tuning={"mode": "PredictOnly"}))
    cluster.reconcile()
    assert (cluster.status["phase"], condition(cluster, "Complete")["reason"]) == ("Succeeded", "PredictedOnly")
    assert condition(cluster, "Tuned")["status"] == "True"
    assert cluster.status["plan"]["name"] == cluster.status["prediction"]["plan"]
    assert cluster.posted == []
    assert sum(part["expected"] for part in cluster.status["prediction"]["components"]) > GIB


def test_predict_only_says_where_a_plan_only_may_fit() -> None:
    # The smallest plans are predicted to need 4.9 GiB, between 4.3 and 5.6, in their step.
    tight = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "4600Mi", "device": "virtual"}
    cluster = SimulatedCluster(make_job(tuning={"mode": "PredictOnly"}, resources=tight))
    cluster.reconcile()
    assert (cluster.status["phase"], condition(cluster, "Complete")["reason"]) == ("Succeeded", "MayFit")
    assert (condition(cluster, "Tuned")["status"], condition(cluster, "Tuned")["reason"]) == ("False", "MayFit")
    assert cluster.status.get("plan") is None, "nothing was chosen"
    assert cluster.status["message"] == (
        "predicted only: no plan is sure to fit; bf16-z1-full-mb1x16 may: "
        "it needs 4.4 GiB to 5.5 GiB, the GPU has 4.5 GiB, and it fits with a probability of 2%: only a probe can tell"
    )


def test_mode_fixed_launches_its_plan_unmeasured() -> None:
    cluster = SimulatedCluster(make_job(tuning={"mode": "Fixed", "plan": "bf16-z2-full-mb2x8"}))
    cluster.reconcile()
    assert last(cluster)["plan"] == "bf16-z2-full-mb2x8"
    assert condition(cluster, "Tuned")["reason"] == "GivenBySpec"


def test_a_job_that_cannot_fit_fails_before_any_pod_with_advice() -> None:
    small = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "1Gi", "device": "virtual"}
    cluster = SimulatedCluster(make_job(resources=small))
    cluster.reconcile()
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "NothingFits"
    assert "use GPUs with at least" in failed["message"] or "What would help" in failed["message"]
    assert cluster.posted == []


@pytest.mark.parametrize("foreign", [{"plan": "bf16-z3-full-mb1x16"}, {"run": "tiny-probe-2"}])
def test_a_report_of_another_plan_or_run_is_ignored(foreign: dict[str, str]) -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    for pod in cluster.pods.values():
        cluster.start(pod.run)
        cluster.end(pod, 0, cluster.report(pod, Ending.SUCCEEDED, **foreign))
    cluster.reconcile()
    assert cluster.status["probes"][0]["verdict"] == "user-error"
    assert any("ReportIgnored" in event for event in cluster.events)


def test_suspend_stops_all_pods_and_resume_keeps_measurements() -> None:
    cluster = launched()
    probes = len(cluster.status["probes"])
    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"suspend": True})})
    cluster.reconcile()
    assert cluster.status["phase"] == "Suspended"
    assert not any(pod.is_running for pod in cluster.pods.values())
    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"suspend": False})})
    cluster.reconcile()
    cluster.tick(20.0)
    assert (len(cluster.status["probes"]), last(cluster)["number"]) == (probes, 2)
    assert (cluster.status["disruptions"], cluster.status["oomRetries"]) == (0, 0)


def test_the_deadline_counts_from_the_first_running_pod() -> None:
    cluster = SimulatedCluster(make_job(activeDeadlineSeconds=100))
    cluster.reconcile()
    cluster.tick(1000.0)
    assert cluster.status["phase"] == "Probing"
    for run in cluster.runs():
        cluster.start(run)
    cluster.tick(99.0)
    assert (cluster.status["phase"], cluster.wake_after) == ("Probing", 1.0), "it is there when the time has come"
    cluster.tick(2.0)
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"


def test_a_finished_job_is_deleted_when_its_time_to_live_is_over() -> None:
    cluster = SimulatedCluster(make_job(ttlSecondsAfterFinished=60, tuning={"mode": "PredictOnly"}))
    cluster.reconcile()
    cluster.tick(59.0)
    assert (cluster.is_deleted, cluster.wake_after) == (False, 1.0)
    cluster.tick(2.0)
    assert cluster.is_deleted


@pytest.mark.parametrize("reason", ["PolicyDenied", "TemplateRejected", "NameTaken"])
def test_a_refusal_stalls_the_job_with_its_own_message_and_starts_nothing(reason: str) -> None:
    cluster = SimulatedCluster(make_job())
    cluster.blockers = (Blocker(reason, "because of hostPath"),)
    cluster.reconcile()
    stalled = condition(cluster, "Stalled")
    assert (stalled["status"], stalled["reason"], stalled["message"]) == ("True", reason, "because of hostPath")
    assert cluster.posted == []
    cluster.blockers = ()
    cluster.reconcile()
    assert condition(cluster, "Stalled")["status"] == "False"
    assert cluster.posted


def test_pods_of_a_finished_job_are_stopped() -> None:
    cluster = launched()
    over = {**condition(cluster, "Launched"), "type": "Complete", "reason": "Succeeded"}
    cluster.status["conditions"].append(over)
    cluster.reconcile()
    assert not any(pod.is_running for pod in cluster.pods.values())
    assert last(cluster)["message"] == "the job is over"


def test_quota_stalls_and_costs_no_retry() -> None:
    cluster = SimulatedCluster(make_job())
    cluster.rejection = "exceeded quota: gpus"
    cluster.tick(600.0)
    assert condition(cluster, "Stalled")["reason"] == "Refused"
    assert len(cluster.status["probes"]) == 1
    cluster.rejection = ""
    cluster.tick(31.0)
    assert condition(cluster, "Stalled")["status"] == "False"


@pytest.mark.parametrize(
    ("reason", "kind"), [("SchedulingGated", "Queued"), ("Unschedulable", "Stalled")], ids=["queued", "unschedulable"]
)
def test_a_pending_pod_is_reported_and_costs_nothing(reason: str, kind: str) -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    for pod in cluster.pods.values():
        pod.conditions = (PodCondition("PodScheduled", "False", reason, "0/3 nodes are available"),)
    cluster.tick(3600.0)
    assert condition(cluster, kind)["status"] == "True"
    assert "0/3 nodes" in condition(cluster, kind)["message"]
    assert (len(cluster.status["probes"]), cluster.status["gpuSecondsSpent"]) == (1, 0)


def test_the_waiting_reason_of_a_suspended_job_is_not_called_resolved() -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    for pod in cluster.pods.values():
        pod.conditions = (PodCondition("PodScheduled", "False", "SchedulingGated", "not admitted"),)
    cluster.tick(60.0)
    cluster.job = edited(cluster.job, suspend=True)
    cluster.reconcile()
    queued = condition(cluster, "Queued")
    assert (queued["status"], queued["reason"]) == ("False", "SuspendedBySpec")
    assert queued["message"] == "the job is suspended"


def test_nodes_with_different_gpus_stall_the_job_until_it_names_one() -> None:
    resources = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi"}
    nodes = (Node("a", "NVIDIA-H100-80GB-HBM3"), Node("b", "NVIDIA-A100-SXM4-80GB"))
    decision = decide(make_job(resources=resources), Observed(nodes=nodes), 1e9)
    assert [each.reason for each in decision.status.conditions if each.type == "Stalled"] == ["MixedGpus"]
    one = decide(make_job(resources=resources), Observed(nodes=nodes[:1]), 1e9)
    assert one.status.gpu_product == "NVIDIA-H100-80GB-HBM3"


def test_a_running_job_stays_on_its_gpu_product_though_others_join() -> None:
    """It started on a cluster without GPU nodes; one joined for it, and later another product."""
    cluster = SimulatedCluster(make_job(resources={"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi"}))
    cluster.reconcile()
    assert "gpuProduct" not in cluster.status or not cluster.status["gpuProduct"]
    (pod,) = cluster.pods.values()
    cluster.start(pod.run)
    pod.node = "a"
    nodes = (Node("a", "NVIDIA-A100-SXM4-80GB"), Node("b", "NVIDIA-H100-80GB-HBM3"))
    status = decide(cluster.job, replace(cluster.observe(), nodes=nodes), cluster.now).status
    assert status.gpu_product == "NVIDIA-A100-SXM4-80GB"
    assert not any(each.type == "Stalled" and each.status == "True" for each in status.conditions)


@pytest.mark.parametrize("own", [{"device": "virtual"}, {"gpuProduct": "NVIDIA-H100-80GB-HBM3"}])
def test_a_rehearsal_needs_no_gpu_product_and_a_job_keeps_the_one_it_names(own: dict[str, Any]) -> None:
    resources = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi", **own}
    nodes = (Node("a", "NVIDIA-A100-SXM4-80GB"),)
    status = decide(make_job(resources=resources), Observed(nodes=nodes), 1e9).status
    assert (len(status.probes), status.gpu_product) == (1, "")


def test_a_time_sliced_gpu_is_refused_unless_the_job_says_which_part_of_it_is_its_own() -> None:
    nodes = (Node("a", "NVIDIA-A100-SXM4-80GB-SHARED", int(79.2 * GIB)),)
    whole = decide(make_job(resources={"gpusPerNode": 1}), Observed(nodes=nodes), 1e9)
    (stalled,) = (each for each in whole.status.conditions if each.type == "Stalled")
    assert stalled.reason == "SharedGpus"
    assert "set resources.memoryShare" in stalled.message
    job = make_job(resources={"gpusPerNode": 1, "memoryShare": "25%"})
    assert decide(job, Observed(nodes=nodes), 1e9).status.phase == "Probing"
    assert knowledge_of(job, Status(), nodes).usable_bytes == nodes[0].gpu_memory_bytes // 4


def test_gpu_memory_defaults_to_the_node_labels() -> None:
    resources = {"nodes": 1, "gpusPerNode": 1}
    nodes = (Node("a", "NVIDIA-L4", 23034 * 2**20),)
    decision = decide(make_job(resources=resources), Observed(nodes=nodes), 1e9)
    assert decision.status.prediction is not None
    assert decision.status.prediction.usable_bytes == 22 * GIB


def test_an_unknown_gpu_is_probed_first_with_the_smallest_plan() -> None:
    decision = decide(make_job(resources={"nodes": 1, "gpusPerNode": 1}), Observed(), 1e9)
    assert decision.status.prediction is None
    assert [probe.plan for probe in decision.status.probes] == ["bf16-z1-full-mb1x16"]
    assert [each.reason for each in decision.status.conditions if each.type == "Tuned"] == ["Probing"]


def edited(job: Job, **blocks: Any) -> Job:
    """Return the job after an edit of its spec, with a new generation."""
    metadata = job.metadata.model_copy(update={"generation": job.metadata.generation + 1})
    return job.model_copy(update={"spec": job.spec.model_copy(update=blocks), "metadata": metadata})


def test_an_edit_of_an_immutable_field_is_refused_with_its_name() -> None:
    cluster = launched()
    training = cluster.job.spec.training.model_copy(update={"sequence_length": 2048})
    cluster.job = edited(cluster.job, training=training)
    cluster.reconcile()
    stalled = condition(cluster, "Stalled")
    assert stalled["reason"] == "SpecChanged"
    assert "spec.training" in stalled["message"]
    assert cluster.status["phase"] == "Running"


def test_a_model_that_cannot_be_predicted_may_be_corrected() -> None:
    cluster = SimulatedCluster(make_job(model={"hfConfig": {}}))
    cluster.reconcile()
    assert (cluster.status["phase"], condition(cluster, "Stalled")["reason"]) == ("Pending", "ModelUnknown")
    cluster.job = edited(cluster.job, model=make_job().spec.model)
    cluster.reconcile()
    assert (cluster.status["phase"], condition(cluster, "Stalled")["status"]) == ("Probing", "False")


def test_a_field_with_a_default_that_a_later_operator_adds_is_no_edit() -> None:
    given = {"globalBatchSize": 16, "sequenceLength": 1024}
    prints = fingerprints(make_job(training=given))
    assert f"training.{short_hash(json.dumps(given), 12)}" in prints, "only what differs from its default counts"
    assert f"launcher.{short_hash('null', 12)}" in prints


def test_a_field_that_a_later_operator_fixes_is_no_edit() -> None:
    cluster = launched()
    fixed = [each for each in cluster.status["fixed"] if not each.startswith("launcher.")]
    cluster.status["fixed"] = [*fixed, "colour.0123456789ab"]
    cluster.job = edited(cluster.job, suspend=False)
    cluster.reconcile()
    assert condition(cluster, "Stalled")["status"] != "True"


def test_an_unreadable_spec_stalls_the_job_and_leaves_its_pods() -> None:
    cluster = launched()
    problem = Blocker("SpecInvalid", "spec.training.globalBatchSize: it must be at least 1")
    decision = refuse(cluster.observe(), 3, problem, cluster.now)
    assert (decision.create, decision.delete) == ((), ())
    assert decision.status.attempts == load_status(cluster.status).attempts
    assert [each.reason for each in decision.status.conditions if each.type == "Stalled"] == ["SpecInvalid"]


@pytest.mark.parametrize("garbage", ["Running", "Suspended", "Dancing"])
def test_the_phase_of_a_job_that_is_over_is_put_right(garbage: str) -> None:
    cluster = launched()
    cluster.finish(cluster.status["attempts"][-1]["name"])
    cluster.reconcile()
    cluster.status["phase"] = garbage
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"


def test_a_finished_job_reports_no_problem() -> None:
    cluster = launched()
    cluster.status["conditions"] += [{**condition(cluster, "Launched"), "type": "Complete"}]
    decision = refuse(cluster.observe(), 3, Blocker("Refused", "the operator may not watch pods"), cluster.now)
    assert (decision.status, decision.events) == (load_status(cluster.status), ())


def test_a_probe_that_never_ends_is_ended_and_the_budget_is_kept() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxGpuSeconds": 200}))
    cluster.reconcile()
    for _ in range(6):
        for run in cluster.runs():
            cluster.start(run)
        cluster.tick(500.0)
    assert cluster.probe_gpu_seconds <= 200
    assert cluster.status["phase"] == "Failed"


def test_probes_side_by_side_are_no_more_than_are_allowed() -> None:
    cluster = SimulatedCluster(make_job(tuning={"parallelProbes": 2, "maxProbes": 2}))
    cluster.reconcile()
    for run in cluster.runs():
        cluster.start(run)
    cluster.tick(20.0)
    cluster.finish("tiny-probe-1")
    cluster.tick(20.0)
    assert [(probe["number"], "endedAt" in probe) for probe in cluster.status["probes"]] == [(1, True), (2, False)]


def test_a_probe_that_waits_is_not_started_once_a_smaller_plan_has_run_out_of_memory() -> None:
    cluster = SimulatedCluster(make_job(tuning={"parallelProbes": 3}), factor=1.6)
    cluster.reconcile()
    largest = max(cluster.status["probes"], key=lambda probe: int(probe["predictedBytes"]))["name"]
    for run in set(cluster.runs()) - {largest}:
        cluster.start(run)
    cluster.reconcile()
    cluster.tick(20.0)
    for run in cluster.runs():
        cluster.finish(run)
    cluster.reconcile()
    ended = {probe["name"]: probe for probe in cluster.status["probes"] if "endedAt" in probe}
    assert sorted(probe.get("verdict", "stopped") for probe in ended.values()) == ["device-oom"] * 2 + ["stopped"]
    assert "ran out of memory meanwhile" in ended[largest]["message"]
    assert cluster.of(largest) == []


def test_a_hung_probe_takes_at_most_half_of_the_budget() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxGpuSeconds": 400}))
    cluster.reconcile()
    for run in cluster.runs():
        cluster.start(run)
    cluster.tick(203.0)
    first, second = cluster.status["probes"]
    assert (first["verdict"], second["number"]) == ("hung", 2), "the other half pays for another plan"
    assert 200 <= cluster.probe_gpu_seconds <= 204


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("is_said", [False, True])
def test_a_pod_waits_for_the_others_as_long_as_a_probe_may_run(is_said: bool, blind: bool) -> None:
    cluster = SimulatedCluster(make_job(2, tuning={"maxGpuSeconds": 100}))
    cluster.reconcile()
    first, second = cluster.pods.values()
    first.started_at = cluster.now
    if is_said:
        second.conditions = (PodCondition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available"),)
    cluster.tick(500.0, blind)
    cluster.reconcile()
    assert cluster.status["probes"][0]["verdict"] == "disrupted", "its plan was not even tried"
    assert cluster.probe_gpu_seconds == 29, "a little more than half of it, like any probe"


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_probes_keep_the_budget_without_an_operator(parallel: int) -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxGpuSeconds": 300, "parallelProbes": parallel}))
    cluster.reconcile()
    for run in cluster.runs():
        cluster.start(run)
    cluster.tick(10_000.0, blind=True)
    cluster.reconcile()
    assert [probe["verdict"] for probe in cluster.status["probes"][:parallel]] == ["hung"] * parallel
    assert cluster.status["gpuSecondsSpent"] == cluster.probe_gpu_seconds <= 300


def test_a_probe_beside_one_that_goes_on_has_the_time_that_such_a_probe_took() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxGpuSeconds": 1200, "parallelProbes": 2}))
    cluster.reconcile()
    first, _ = cluster.runs()
    for run in cluster.runs():
        cluster.start(run)
    cluster.tick(300.0)
    cluster.finish(first)
    cluster.reconcile()
    (third,) = (pod for pod in cluster.pods.values() if "probe-3" in pod.run)
    assert third.seconds > 300


def test_a_probe_ended_by_its_deadline_without_an_operator_has_hung() -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    cluster.start(pod.run)
    pod.seconds = 0  # an older runner, which does not end by itself
    cluster.tick(10_000.0, blind=True)
    cluster.end(pod, 143, cluster.report(pod, Ending.TERMINATED))
    pod.reason = "DeadlineExceeded"
    cluster.reconcile()
    assert cluster.status["probes"][0]["verdict"] == "hung"
    assert cluster.status["disruptions"] == 0


def test_every_disrupted_probe_counts_beside_others() -> None:
    cluster = SimulatedCluster(make_job(tuning={"parallelProbes": 2}, retry={"maxDisruptions": 4}))
    cluster.reconcile()
    while cluster.status["phase"] == "Probing":
        for run in cluster.runs():
            cluster.start(run)
        for pod in [pod for pod in cluster.pods.values() if pod.is_running]:
            cluster.end(pod, 143, cluster.report(pod, Ending.TERMINATED))
        cluster.reconcile()
        cluster.tick(330)
    taken = [probe for probe in cluster.status["probes"] if probe["verdict"] == "disrupted"]
    assert (cluster.status["phase"], cluster.status["disruptions"]) == ("Failed", len(taken))
    assert 4 < len(taken) <= 6


def test_a_probe_pending_until_its_deadline_is_repeated() -> None:
    cluster = SimulatedCluster(make_job(retry={"maxDisruptions": 2}))
    cluster.reconcile()
    waited_until_the_deadline(cluster)
    first, second = cluster.status["probes"]
    assert (first["verdict"], first["gpuSeconds"], second["plan"]) == ("disrupted", 0, first["plan"])
    assert cluster.status["disruptions"] == 1
    waited_until_the_deadline(cluster)
    waited_until_the_deadline(cluster)
    assert cluster.status["phase"] == "Failed"


def waited_until_the_deadline(cluster: SimulatedCluster) -> None:
    (pod,) = (pod for pod in cluster.pods.values() if not pod.reason)
    pod.waiting_reason = "ImagePullBackOff"
    cluster.tick(15_000.0, blind=True)
    pod.reason = "DeadlineExceeded"
    cluster.tick(60.0)


def test_a_budget_too_small_for_a_probe_starts_none() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxGpuSeconds": 20}))
    cluster.reconcile()
    assert cluster.posted == []
    assert "pay for about 0" in condition(cluster, "Tuned")["message"]
    assert condition(cluster, "Failed")["reason"] == "NothingMeasured"
    assert cluster.status["probingEnded"] == "max-gpu-seconds"


def test_the_status_says_whether_the_budget_ended_the_probing() -> None:
    assert launched().status["probingEnded"] == "search"
    cluster = SimulatedCluster(make_job(tuning={"maxGpuSeconds": 42}))
    cluster.reconcile()
    for run in cluster.runs():
        cluster.start(run)
    assert not cluster.status["probingEnded"], "it goes on"
    cluster.tick(20.0)
    cluster.finish("tiny-probe-1")
    cluster.reconcile()
    assert condition(cluster, "Tuned")["status"] == "True"
    assert len(cluster.status["probes"]) == 1
    assert cluster.status["probingEnded"] == "max-gpu-seconds"


def test_a_plan_that_costs_more_than_is_left_is_not_probed_and_the_budget_is_named() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxGpuSeconds": 36}))
    dear = Plan.parse("bf16-z1-full-mb16x1")  # about 38 GPU-seconds, where the others take 35
    decision = decide(cluster.job, cluster.observe(), cluster.now, lambda _: dear)
    assert decision.status.probes == ()
    assert decision.status.probing_ended == "max-gpu-seconds"


def test_a_search_that_finds_nothing_worth_its_cost_ends_the_probing() -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    for run in cluster.runs():
        cluster.start(run)
        cluster.finish(run)
    decision = decide(cluster.job, cluster.observe(), cluster.now, lambda _: None)
    assert decision.status.plan is not None
    assert decision.status.plan.name == cluster.status["probes"][0]["plan"]
    tuned = next(each.message for each in decision.status.conditions if each.type == "Tuned")
    assert "no plan left is worth a probe" in tuned
