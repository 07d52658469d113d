"""What is decided, one situation after the other, on a simulated cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.decide import Node, Observed, Refusal, decide, refuse
from memtune.decide.fixing import fingerprints
from memtune.naming import short_hash
from memtune.observation import Condition
from memtune.plan import Plan
from memtune.report import EXIT_CODES, Ending, Memory, Phase
from memtune.spec.job import Job
from memtune.spec.status import load_status
from memtune.units import GIB


def launched(job: Job | None = None, factor: float = 1.0) -> SimulatedCluster:
    """A cluster whose job has probed, and whose first train run is running."""
    cluster = SimulatedCluster(job or make_job(), factor)
    for _ in range(40):
        cluster.reconcile()
        for run in cluster.runs():
            cluster.start(run)
        cluster.reconcile()
        if cluster.status["phase"] in ("Running", "Failed"):
            return cluster
        cluster.tick(20.0)
        for run in cluster.runs():
            cluster.finish(run)
    raise AssertionError(cluster.events)


def die(cluster: SimulatedCluster, ending: Ending, exit_code: int, **report: Any) -> None:
    """The running train run ends, saying so, and the operator sees it."""
    for pod in cluster.pods.values():
        if pod.is_running:
            cluster.end(pod, exit_code, cluster.report(pod, ending, **report))
    cluster.reconcile()
    cluster.tick(20.0)


def condition(cluster: SimulatedCluster, kind: str) -> dict[str, Any]:
    found = [each for each in cluster.status["conditions"] if each["type"] == kind]
    return found[0] if found else {"status": "absent", "reason": "", "message": ""}


def last(cluster: SimulatedCluster) -> dict[str, Any]:
    attempt: dict[str, Any] = cluster.status["attempts"][-1]
    return attempt


SAVED = {"checkpoint_samples": 320, "checkpoint_format": "deepspeed", "steps": 30}


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
    best = max(cluster.status["probes"], key=lambda probe: probe["tokensPerSecond"])
    assert last(cluster)["plan"] == best["plan"] == cluster.status["plan"]["name"]
    for run in cluster.runs():
        cluster.finish(run)
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"
    assert condition(cluster, "Complete")["status"] == "True"
    assert cluster.services == {}


def test_predict_only_starts_no_pod_and_is_complete() -> None:
    cluster = SimulatedCluster(make_job(tuning={"mode": "PredictOnly"}))
    cluster.reconcile()
    assert (cluster.status["phase"], condition(cluster, "Complete")["reason"]) == ("Succeeded", "PredictedOnly")
    assert cluster.posted == []
    assert sum(part["expected"] for part in cluster.status["prediction"]["components"]) > GIB


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


def test_an_out_of_memory_is_followed_by_a_smaller_plan_from_the_checkpoint() -> None:
    cluster = launched()
    before = last(cluster)
    cluster.usable_bytes = int(cluster.truth(before["plan"]) * 0.9)
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
    after = last(cluster)
    assert after["number"] == 2
    assert cluster.truth(after["plan"]) < cluster.truth(before["plan"])
    assert after["rung"]
    assert (after["resume"], after["resumedSamples"]) == ("direct", 320)
    assert cluster.status["oomRetries"] == 1
    assert Plan.parse(after["plan"]).global_batch(1) == 16


def test_an_out_of_memory_in_evaluation_lowers_the_evaluation_batch_and_nothing_else() -> None:
    training = {"globalBatchSize": 16, "sequenceLength": 1024, "evaluation": {"batchSize": 6}}
    cluster = launched(make_job(training=training))
    plan = last(cluster)["plan"]
    die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.EVALUATION, **SAVED)
    assert (last(cluster)["plan"], last(cluster)["evaluationBatch"]) == (plan, 3)
    assert cluster.status["attempts"][0]["outOfMemory"] == "evaluation"


def test_an_out_of_memory_in_a_save_changes_gathering_and_nothing_else() -> None:
    cluster = launched()
    plan = last(cluster)["plan"]
    die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.SAVE, **SAVED)
    assert (last(cluster)["plan"], last(cluster)["shardedSave"]) == (plan, True)


def test_a_disruption_is_followed_by_the_same_plan_and_has_a_budget_of_its_own() -> None:
    cluster = launched(make_job(retry={"maxDisruptions": 1}))
    plan = last(cluster)["plan"]
    die(cluster, Ending.TERMINATED, 143, **SAVED)
    assert (last(cluster)["number"], last(cluster)["plan"]) == (2, plan)
    assert (cluster.status["disruptions"], cluster.status["oomRetries"]) == (1, 0)
    for run in cluster.runs():
        cluster.start(run)
    die(cluster, Ending.TERMINATED, 143, **SAVED)
    assert condition(cluster, "Failed")["reason"] == "DisruptionsSpent"


def test_the_budget_for_out_of_memory_ends() -> None:
    cluster = launched(make_job(retry={"maxOomRetries": 0}))
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
    assert condition(cluster, "Failed")["reason"] == "OomRetriesSpent"


def test_host_memory_is_raised_within_the_template_and_never_shrinks_the_batch() -> None:
    cluster = launched()
    plan = last(cluster)["plan"]
    die(cluster, Ending.HOST_OOM, 86, **SAVED)
    assert last(cluster)["plan"] == plan
    assert last(cluster)["hostRequestBytes"] > 0


def test_host_memory_at_its_limit_ends_the_job_with_advice() -> None:
    cluster = launched()
    for pod in cluster.pods.values():
        cluster.end(pod, 86, cluster.report(pod, Ending.HOST_OOM, **SAVED))
    observed = replace(cluster.observe(), host_limit_bytes=GIB)
    status = decide(cluster.job, observed, cluster.now).status
    observed = replace(observed, status=status.model_dump(mode="json", by_alias=True, exclude_none=True), runs={})
    status = decide(cluster.job, observed, cluster.now + 60).status
    failed = next(each for each in status.conditions if each.type == "Failed")
    assert failed.reason == "HostMemory"
    assert "limits.memory" in failed.message


@pytest.mark.parametrize(("ending", "exit_code"), [(Ending.ERROR, 1), (Ending.BAD_INPUT, 2)])
def test_a_users_error_seen_twice_fails_the_job_with_its_last_lines(ending: Ending, exit_code: int) -> None:
    cluster = SimulatedCluster(make_job())
    for _ in range(2):
        cluster.reconcile()
        for run in cluster.runs():
            cluster.start(run)
        die(cluster, ending, exit_code, log_tail="Traceback\nKeyError: 'tokens'", message="KeyError")
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "UserError"
    assert "KeyError: 'tokens'" in failed["message"]
    assert len(cluster.status["probes"]) == 2


def test_without_a_checkpoint_a_run_that_trained_is_not_started_again_from_step_0() -> None:
    cluster = launched(make_job(checkpoint=None))
    die(cluster, Ending.TERMINATED, 143, steps=30)
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "NotResumable"
    assert "allowRestart" in failed["message"]


def test_with_consent_a_run_without_a_checkpoint_starts_again_from_step_0() -> None:
    cluster = launched(make_job(checkpoint=None, retry={"allowRestart": True}))
    die(cluster, Ending.TERMINATED, 143, steps=30)
    assert (last(cluster)["number"], last(cluster)["resume"]) == (2, "no")


def test_a_plan_that_the_checkpoint_cannot_go_on_under_is_named_and_not_launched() -> None:
    template = {"spec": {"containers": [{"name": "trainer", "image": "mine", "command": ["python", "train.py"]}]}}
    space = {"zeroStages": [1, 3], "checkpointing": ["full"], "backends": ["deepspeed"]}
    training = {"globalBatchSize": 8, "sequenceLength": 256}
    facts = {"hiddenSize": 4096, "layers": 8, "heads": 32, "vocabSize": 8000, "ffnSize": 16384}
    resources = {"nodes": 8, "gpusPerNode": 1, "gpuMemory": "40Gi", "device": "virtual"}
    asked: dict[str, Any] = {"model": {"architecture": facts}, "resources": resources, "training": training}
    cluster = launched(make_job(8, template=template, tuning={"space": space}, **asked))
    assert last(cluster)["plan"] == "bf16-z1-full-mb1x1"
    cluster.usable_bytes = int(cluster.truth("bf16-z3-full-mb1x1") * 1.2)
    die(cluster, Ending.DEVICE_OOM, 85, **{**SAVED, "checkpoint_format": "script"})
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "NotResumable"
    assert "bf16-z3-full-mb1x1" in failed["message"]


def test_an_exhausted_ladder_says_what_would_have_been_needed() -> None:
    cluster = launched()
    cluster.usable_bytes = GIB
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "LadderExhausted"
    assert "What would help" in failed["message"]


def test_a_report_of_another_plan_is_as_if_there_were_none() -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    for pod in cluster.pods.values():
        cluster.start(pod.run)
        cluster.end(pod, 0, replace(cluster.report(pod, Ending.SUCCEEDED), plan="bf16-z3-full-mb1x16"))
    cluster.reconcile()
    assert cluster.status["probes"][0]["verdict"] == "user-error"
    assert any("ReportIgnored" in event for event in cluster.events)


def test_a_node_that_took_two_attempts_down_is_avoided() -> None:
    cluster = launched()
    for _ in range(2):
        for pod in cluster.pods.values():
            if pod.is_running:
                pod.node, pod.node_lost = "node-b", True
        cluster.reconcile()
        cluster.tick(400.0)
        for run in cluster.runs():
            cluster.start(run)
        cluster.reconcile()
    assert [attempt.get("lostNode") for attempt in cluster.status["attempts"]][:2] == ["node-b", "node-b"]
    # The attempt is the newest, so its pods are made again where they are missing.
    observed = cluster.observe()
    raw = observed.status
    raw["attempts"][-1] |= {"created": False}
    runs = decide(cluster.job, replace(observed, status=raw, runs={}), cluster.now).create
    assert [run.avoided_nodes for run in runs] == [("node-b",)]


def test_the_next_attempt_waits_until_the_old_pods_are_gone() -> None:
    cluster = launched(make_job(2))
    first, second = (cluster.pods[name] for name in sorted(cluster.pods)[-2:])
    second.is_stuck = True
    cluster.end(first, 85, cluster.report(first, Ending.DEVICE_OOM, **SAVED))
    cluster.tick(300.0)
    assert second.deleting
    assert (len(cluster.status["attempts"]), cluster.status["phase"]) == (1, "Recovering")
    cluster.end(second, 143)
    cluster.tick(60.0)
    assert len(cluster.status["attempts"]) == 2


FIXED = {"mode": "Fixed", "plan": "bf16-z2-full-mb2x8"}


def test_a_job_whose_status_was_lost_takes_back_the_run_of_its_plan() -> None:
    cluster = launched(make_job(tuning=FIXED))
    (pod,) = cluster.pods.values()
    cluster.status = {}
    cluster.reconcile()
    assert (cluster.status["phase"], last(cluster)["number"]) == ("Running", 1)
    assert cluster.posted == [pod.name]
    assert pod.is_running


def test_a_pod_of_an_earlier_life_is_waited_for_and_counts_for_nothing() -> None:
    cluster = launched(make_job(tuning=FIXED))
    (old,) = cluster.pods.values()
    old.is_stuck = old.deleting = True
    cluster.status = {}
    cluster.reconcile()
    cluster.end(old, 143)
    cluster.tick(60.0)
    assert (last(cluster)["number"], last(cluster)["created"], "verdict" in last(cluster)) == (1, False, False)
    del cluster.pods[old.name]
    cluster.reconcile()
    cluster.start("tiny-train-1")
    cluster.reconcile()
    assert (cluster.status["phase"], last(cluster)["number"], cluster.status["disruptions"]) == ("Running", 1, 0)


def test_a_run_that_nobody_recorded_is_gone_before_another_starts() -> None:
    cluster = launched(make_job(tuning=FIXED))
    (stray,) = cluster.pods.values()
    stray.run, stray.is_stuck = "tiny-train-7", True
    cluster.status = {}
    cluster.reconcile()
    assert stray.deleting
    assert cluster.status["attempts"] == [], "it may still write checkpoints"
    cluster.end(stray, 143)
    cluster.tick(60.0)
    assert last(cluster)["number"] == 1


def test_suspend_stops_all_pods_and_resume_goes_on_with_what_was_learned() -> None:
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
    assert cluster.status["phase"] != "Failed"
    cluster.tick(2.0)
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"


def test_a_finished_job_is_deleted_when_its_time_to_live_is_over() -> None:
    cluster = SimulatedCluster(make_job(ttlSecondsAfterFinished=60, tuning={"mode": "PredictOnly"}))
    cluster.reconcile()
    cluster.tick(59.0)
    assert not cluster.is_deleted
    cluster.tick(2.0)
    assert cluster.is_deleted


@pytest.mark.parametrize("reason", ["PolicyDenied", "TemplateRejected", "NameTaken"])
def test_a_refusal_stalls_the_job_in_the_words_of_who_refuses_and_starts_nothing(reason: str) -> None:
    cluster = SimulatedCluster(make_job())
    cluster.refusals = (Refusal(reason, "because of hostPath"),)
    cluster.reconcile()
    stalled = condition(cluster, "Stalled")
    assert (stalled["status"], stalled["reason"], stalled["message"]) == ("True", reason, "because of hostPath")
    assert cluster.posted == []
    cluster.refusals = ()
    cluster.reconcile()
    assert condition(cluster, "Stalled")["status"] == "False"
    assert cluster.posted


def test_quota_stalls_and_costs_no_retry() -> None:
    cluster = SimulatedCluster(make_job())
    cluster.refusal = "exceeded quota: gpus"
    cluster.tick(600.0)
    assert condition(cluster, "Stalled")["reason"] == "Refused"
    assert len(cluster.status["probes"]) == 1
    cluster.refusal = ""
    cluster.tick(31.0)
    assert condition(cluster, "Stalled")["status"] == "False"


@pytest.mark.parametrize(
    ("reason", "kind"), [("SchedulingGated", "Queued"), ("Unschedulable", "Stalled")], ids=["queued", "unschedulable"]
)
def test_a_pod_that_waits_is_told_of_and_costs_nothing(reason: str, kind: str) -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    for pod in cluster.pods.values():
        pod.conditions = (Condition("PodScheduled", "False", reason, "0/3 nodes are available"),)
    cluster.tick(3600.0)
    assert condition(cluster, kind)["status"] == "True"
    assert "0/3 nodes" in condition(cluster, kind)["message"]
    assert (len(cluster.status["probes"]), cluster.status["gpuSecondsSpent"]) == (1, 0)


def test_nodes_with_different_gpus_stall_the_job_until_it_names_one() -> None:
    resources = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi"}
    nodes = (Node("a", "NVIDIA-H100-80GB-HBM3"), Node("b", "NVIDIA-A100-SXM4-80GB"))
    decision = decide(make_job(resources=resources), Observed(nodes=nodes), 1e9)
    assert [each.reason for each in decision.status.conditions if each.type == "Stalled"] == ["MixedGpus"]
    one = decide(make_job(resources=resources), Observed(nodes=nodes[:1]), 1e9)
    assert one.status.gpu_product == "NVIDIA-H100-80GB-HBM3"


def test_gpu_memory_comes_from_node_labels_where_the_job_does_not_say_it() -> None:
    resources = {"nodes": 1, "gpusPerNode": 1}
    nodes = (Node("a", "NVIDIA-L4", 23034 * 2**20),)
    decision = decide(make_job(resources=resources), Observed(nodes=nodes), 1e9)
    assert decision.status.prediction is not None
    assert decision.status.prediction.usable_bytes == 22 * GIB


def test_an_unknown_gpu_is_told_by_the_first_probe_on_the_smallest_plan() -> None:
    decision = decide(make_job(resources={"nodes": 1, "gpusPerNode": 1}), Observed(), 1e9)
    assert decision.status.prediction is None
    assert [probe.plan for probe in decision.status.probes] == ["bf16-z1-full-mb1x16"]


def edited(job: Job, **blocks: Any) -> Job:
    """The job after an edit of its spec, which the API server counts."""
    metadata = job.metadata.model_copy(update={"generation": job.metadata.generation + 1})
    return job.model_copy(update={"spec": job.spec.model_copy(update=blocks), "metadata": metadata})


def test_an_edit_of_what_cannot_change_is_refused_with_its_name() -> None:
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


def test_a_spec_that_cannot_be_read_stalls_and_leaves_alone_what_runs() -> None:
    cluster = launched()
    decision = refuse(cluster.observe(), 3, "spec.training.globalBatchSize: it must be at least 1", cluster.now)
    assert (decision.create, decision.delete) == ((), ())
    assert decision.status.attempts == load_status(cluster.status).attempts
    assert [each.reason for each in decision.status.conditions if each.type == "Stalled"] == ["SpecInvalid"]


def test_the_last_two_failed_runs_keep_their_terminated_pods() -> None:
    cluster = launched(make_job(tuning={"headroom": "6%"}), factor=1.6)
    failed = [each["name"] for each in cluster.status["probes"] if each.get("verdict") != "succeeded"]
    kept = {pod.run for pod in cluster.pods.values() if not pod.is_running}
    assert kept == set(failed[-2:])
    none = launched(make_job(podRetention="None"), factor=1.6)
    assert all(pod.is_running for pod in none.pods.values())


def test_a_probe_that_never_ends_is_ended_and_the_budget_is_kept() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxGpuSeconds": 200}))
    cluster.reconcile()
    for _ in range(6):
        for run in cluster.runs():
            cluster.start(run)
        cluster.tick(500.0)
    assert cluster.probe_gpu_seconds <= 200
    assert cluster.status["phase"] == "Failed"


def test_a_budget_that_pays_for_no_probe_starts_none() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxGpuSeconds": 20}))
    cluster.reconcile()
    assert cluster.posted == []
    assert "pay for about 0" in condition(cluster, "Tuned")["message"]
    assert condition(cluster, "Failed")["reason"] == "NothingMeasured"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    """The status of a job that is well under way."""
    return launched(factor=1.6).status


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_a_status_edited_by_hand_is_survived(written: dict[str, Any], data: st.DataObject) -> None:
    edited = dict(written)
    for name in data.draw(st.lists(st.sampled_from(sorted(written)), max_size=3)):
        edited[name] = data.draw(json_values)
    if data.draw(st.booleans()):
        edited["probes"] = [{**probe, "plan": "bf16-z9-none-mb1x1"} for probe in written["probes"]]
    decision = decide(make_job(), Observed(status=edited), data.draw(st.floats(allow_nan=True)))
    assert load_status(decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)) == decision.status


counts = st.none() | st.integers(0, 2**60) | st.sampled_from([0, 1, 2**20, 2**33])
rates = st.none() | st.floats(0, 2.0**60) | st.sampled_from([5e-324, 1e-300, 0.0])
garbage: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    memory=st.builds(Memory, *[counts] * 9),
    step_seconds=rates,
    tokens_per_second=rates,
    steps=counts,
    checkpoint_samples=counts,
    checkpoint_format=st.none() | st.sampled_from(["dcp", "deepspeed", "x"]),
    phase=st.none() | st.sampled_from(list(Phase)),
    message=st.text(max_size=300),
    log_tail=st.text(max_size=50),
)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.sampled_from([Ending.SUCCEEDED, Ending.DEVICE_OOM, Ending.HOST_OOM]), garbage, garbage)
def test_garbage_in_reports_is_survived(ending: Ending, first: dict[str, Any], second: dict[str, Any]) -> None:
    cluster = SimulatedCluster(make_job())
    for report in (first, second, {}, {}):
        cluster.reconcile()
        for pod in list(cluster.pods.values()):
            cluster.start(pod.run)
            if pod.is_running:
                cluster.end(pod, EXIT_CODES.get(ending, 0), cluster.report(pod, ending, **report))
        cluster.reconcile()
    assert load_status(cluster.status)
