"""Editable fields of a spec take effect at once while the job runs; their old values bind nothing."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_situations import SAVED, condition, die, edit, last, launched
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.status import load_status
from memtune.controller import Blocker
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.trials import search_state
from memtune.plans.plan import Plan
from memtune.wire.report import Ending
from memtune.words import camel


def probing(**tuning: Any) -> SimulatedCluster:
    """Return a job whose first probe runs."""
    cluster = SimulatedCluster(make_job(tuning=tuning))
    cluster.reconcile()
    for run in cluster.runs():
        cluster.start(run)
    cluster.reconcile()
    return cluster


def probe(cluster: SimulatedCluster) -> None:
    """End the running probe and start whatever follows."""
    cluster.tick(20.0)
    for run in cluster.runs():
        cluster.finish(run)
    cluster.reconcile()


def test_a_lowered_probe_limit_takes_effect_at_once() -> None:
    cluster = probing()
    edit(cluster, "tuning", max_probes=1)
    probe(cluster)
    assert (len(cluster.status["probes"]), condition(cluster, "Tuned")["status"]) == (1, "True")


def test_more_probes_are_made_once_they_are_allowed() -> None:
    cluster = probing(maxProbes=1)
    edit(cluster, "tuning", max_probes=2)
    probe(cluster)
    assert len(cluster.status["probes"]) == 2


def test_probes_that_run_end_when_their_budget_is_taken_away() -> None:
    cluster = probing(parallelProbes=2)
    cluster.tick(60.0)
    edit(cluster, "tuning", max_gpu_seconds=130)
    ended = [(probe["message"], "verdict" in probe) for probe in cluster.status["probes"]]
    assert ended == [("the budget of GPU-seconds is spent", False)] * 2
    assert not any(pod.is_running for pod in cluster.pods.values())
    assert 120 <= cluster.status["gpuSecondsSpent"] <= 130


def test_a_plan_removed_from_the_space_is_not_launched() -> None:
    cluster = probing(space={"checkpointing": ["none", "full"], "zeroStages": [1], "backends": ["deepspeed"]})
    assert "-none-" in cluster.status["probes"][0]["plan"]
    probe(cluster)
    space = cluster.job.spec.tuning.space.model_copy(update={"checkpointing": ("full",)})
    edit(cluster, "tuning", space=space)
    for _ in range(10):
        for run in cluster.runs():
            cluster.start(run)
        probe(cluster)
    assert "-full-" in cluster.status["plan"]["name"]


@pytest.mark.parametrize(
    ("field", "open_before", "open_now"),
    [
        ("precision", "bf16", "fp16"),
        ("optimizer", "sgd", "adamw"),
        ("fused_loss", True, False),
        ("expandable_segments", True, False),
        ("checkpointing", "none", "full"),
    ],
)
def test_probes_of_a_choice_that_is_closed_stay_known_and_use_up_nothing(
    field: str, open_before: Any, open_now: Any
) -> None:
    # What runs to its end: a probe that ran out of memory measures no bytes.
    whole = {"checkpointing": ["none"], "zeroStages": [1], "backends": ["deepspeed"], "microBatch": [1, 2]}
    cluster = probing(maxProbes=2, space={**whole, camel(field): [open_before]})
    probe(cluster)
    assert len(cluster.status["probes"]) == 2
    space = make_job(tuning={"space": {**whole, camel(field): [open_now]}}).spec.tuning.space
    edit(cluster, "tuning", space=space)
    for _ in range(6):
        for run in cluster.runs():
            cluster.start(run)
        probe(cluster)
    status = load_status(cluster.status)
    knowledge = knowledge_of(cluster.job, status, None)
    state = search_state(cluster.job, status, knowledge)
    closed = [trial.plan for trial in state.trials if trial.closed]
    assert (len(closed), len(state.choice.trials)) == (2, 2)
    assert set(closed) <= set(knowledge.measured_bytes)
    assert all(trial.score for trial in state.trials)
    assert all(knowledge.space.allows(trial.plan) for trial in state.choice.trials)
    assert Plan.parse(cluster.status["plan"]["name"]) not in closed


def test_an_edit_that_makes_records_unreadable_changes_nothing() -> None:
    cluster = launched()
    before, pods = cluster.status["attempts"], sorted(cluster.pods)
    edit(cluster, "training", global_batch_size=32)
    stalled = condition(cluster, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "SpecChanged")
    assert stalled["message"].startswith("spec.training cannot change")
    assert (cluster.status["attempts"], sorted(cluster.pods)) == (before, pods)
    edit(cluster, "training", global_batch_size=16)
    assert condition(cluster, "Stalled")["status"] == "False"
    cluster.finish(before[-1]["name"])
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"


def test_a_job_with_unreadable_records_can_be_suspended_and_continues_once_corrected() -> None:
    cluster = launched(make_job(tuning={"maxProbes": 1}))
    edit(cluster, "training", global_batch_size=32)
    edit(cluster, suspend=True)
    assert (cluster.status["phase"], cluster.pods) == ("Suspended", {})
    assert [each["number"] for each in cluster.status["attempts"]] == [1]
    edit(cluster, suspend=False)
    assert (condition(cluster, "Stalled")["reason"], cluster.pods) == ("SpecChanged", {})
    edit(cluster, "training", global_batch_size=16)
    cluster.tick(20.0)
    assert (last(cluster)["number"], cluster.status["phase"]) == (2, "Launching"), cluster.status["message"]


def test_a_job_with_unreadable_records_meets_its_deadline_and_keeps_them() -> None:
    cluster = launched()
    edit(cluster, active_deadline_seconds=400)
    edit(cluster, "resources", gpus_per_node=4)
    assert condition(cluster, "Stalled")["reason"] == "SpecChanged"
    cluster.tick(500.0)
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"
    assert not any(pod.is_running for pod in cluster.pods.values())
    cluster.tick(60.0)
    assert [each["number"] for each in cluster.status["attempts"]] == [1]
    assert cluster.status["plan"] is not None


def test_a_job_with_unreadable_records_ends_with_its_run() -> None:
    cluster = launched()
    edit(cluster, "training", global_batch_size=32)
    cluster.finish(last(cluster)["name"])
    cluster.reconcile()
    assert (cluster.status["phase"], last(cluster)["verdict"]) == ("Succeeded", "succeeded")


def test_the_last_report_of_a_stopped_run_decides_whether_it_trained() -> None:
    cluster = launched(make_job(checkpoint=None))
    for pod in cluster.pods.values():
        pod.held = True  # its container takes its time to end
    edit(cluster, suspend=True)
    assert (last(cluster)["trained"], last(cluster)["checkpoint"]) == (True, "unknown")
    for pod in cluster.pods.values():
        pod.report = cluster.report(pod, Ending.TERMINATED, steps=0)
    cluster.reconcile()
    assert (last(cluster)["trained"], last(cluster)["checkpoint"]) == (False, "none")
    cluster.pods.clear()
    edit(cluster, suspend=False)
    cluster.tick(20.0)
    assert (last(cluster)["number"], cluster.status["phase"]) == (2, "Launching"), cluster.status["message"]


def test_a_retry_more_is_made_once_it_is_allowed() -> None:
    cluster = launched(make_job(retry={"maxOomRetries": 0}))
    edit(cluster, "retry", max_oom_retries=1)
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
    assert (last(cluster)["number"], cluster.status["oomRetries"]) == (2, 1)


def test_a_deadline_and_a_time_to_live_may_come_late() -> None:
    cluster = launched()
    cluster.tick(500.0)
    edit(cluster, active_deadline_seconds=400)
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"
    cluster.tick(100.0)
    assert not cluster.is_deleted
    edit(cluster, ttl_seconds_after_finished=60)
    assert cluster.is_deleted


def test_the_deadline_of_a_job_that_was_suspended_counts_anew() -> None:
    cluster = probing()
    edit(cluster, active_deadline_seconds=200)
    cluster.tick(190.0)
    edit(cluster, suspend=True)
    cluster.tick(50.0)
    edit(cluster, suspend=False)
    cluster.tick(20.0)
    for run in cluster.runs():
        cluster.start(run)
    cluster.tick(190.0)
    assert cluster.status["phase"] == "Probing"
    cluster.tick(11.0)
    assert condition(cluster, "Failed")["reason"] == "DeadlineExceeded"


def test_a_pod_that_never_had_a_node_keeps_no_gpus_however_long_a_queue_holds_it() -> None:
    """A queue's finalizer may keep a deleted pod; no scheduler binds it any more."""
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    (waiting,) = cluster.pods.values()
    waiting.held, waiting.node = True, ""
    edit(cluster, suspend=True)
    edit(cluster, suspend=False)
    cluster.tick(30.0)
    assert (waiting.deleting, len(cluster.status["probes"])) == (True, 2)


def test_a_probe_that_does_not_end_keeps_its_gpus_from_the_next() -> None:
    cluster = probing()
    (stuck,) = cluster.pods.values()
    stuck.is_stuck = True
    edit(cluster, suspend=True)
    edit(cluster, suspend=False)
    cluster.tick(400.0)
    assert (stuck.deleting, len(cluster.status["probes"])) == (True, 1)
    cluster.end(stuck, 143)
    cluster.tick(60.0)
    assert len(cluster.status["probes"]) == 2


def test_a_mode_that_probes_no_more_ends_the_probes() -> None:
    cluster = probing()
    edit(cluster, "tuning", mode="PredictOnly")
    assert (cluster.status["phase"], condition(cluster, "Complete")["reason"]) == ("Succeeded", "PredictedOnly")
    assert not any(pod.is_running for pod in cluster.pods.values())


def test_a_plan_that_is_given_late_is_launched_once_the_probes_are_gone() -> None:
    cluster = probing()
    edit(cluster, "tuning", mode="Fixed", plan="bf16-z1-full-mb4x4")
    cluster.tick(30.0)
    assert last(cluster)["plan"] == "bf16-z1-full-mb4x4"
    assert "verdict" not in cluster.status["probes"][0], "it was stopped, which says nothing of its plan"


def tuned() -> SimulatedCluster:
    """Return a job with a measured plan that cannot be launched until the next edit."""
    cluster = probing(maxProbes=1)
    cluster.blockers = (Blocker("Refused", "the quota is spent"),)
    probe(cluster)
    assert condition(cluster, "Tuned")["status"] == "True"
    assert not cluster.status.get("attempts")
    cluster.blockers = ()
    return cluster


def test_switching_to_predict_only_works_until_the_first_attempt() -> None:
    cluster = tuned()
    edit(cluster, "tuning", mode="PredictOnly")
    assert (cluster.status["phase"], condition(cluster, "Complete")["reason"]) == ("Succeeded", "PredictedOnly")
    assert not cluster.status.get("attempts")


def test_a_plan_that_is_given_late_is_launched_instead_of_the_measured_one() -> None:
    cluster = tuned()
    edit(cluster, "tuning", mode="Fixed", plan="bf16-z1-full-mb4x4")
    assert last(cluster)["plan"] == "bf16-z1-full-mb4x4"


def test_a_measured_plan_that_keeps_too_little_free_by_now_is_not_launched() -> None:
    cluster = tuned()
    edit(cluster, "tuning", headroom="70%")
    assert not cluster.status.get("attempts")
    assert condition(cluster, "Failed")["reason"] == "NothingFits", "no other probe is allowed"
    assert "too tight" in condition(cluster, "Failed")["message"]


def test_another_plan_is_measured_where_the_one_that_was_is_not_allowed_any_more() -> None:
    cluster = tuned()
    before = cluster.status["plan"]["name"]
    allowed = "full" if "-none-" in before else "none"
    space = cluster.job.spec.tuning.space.model_copy(update={"checkpointing": (allowed,)})
    edit(cluster, "tuning", space=space, max_probes=2)
    assert (cluster.status["phase"], condition(cluster, "Tuned")["status"]) == ("Probing", "False")
    assert before not in [probe["plan"] for probe in cluster.status["probes"][1:]]
    assert f"-{allowed}-" in cluster.status["probes"][1]["plan"]


def test_a_plan_that_somebody_wrote_into_the_status_is_not_launched() -> None:
    cluster = tuned()
    before = cluster.status["plan"]["name"]
    cluster.status["plan"]["name"] = "bf16-z3-none-mb16x1"
    cluster.reconcile()
    assert last(cluster)["plan"] == before


def test_probes_requested_late_must_measure_a_plan_before_the_launch() -> None:
    cluster = tuned()
    cluster.blockers = (Blocker("Refused", "the quota is spent"),)
    edit(cluster, "tuning", mode="Fixed", plan="bf16-z1-full-mb4x4")
    assert condition(cluster, "Tuned")["reason"] == "GivenBySpec"
    cluster.blockers = ()
    edit(cluster, "tuning", mode="Probe", plan=None, max_probes=3)
    assert (cluster.status["phase"], cluster.status.get("plan")) == ("Probing", None)
    assert (condition(cluster, "Tuned")["status"], condition(cluster, "Tuned")["reason"]) == ("False", "Probing")


def test_the_mode_of_a_training_job_has_no_effect() -> None:
    cluster = launched()
    before = last(cluster)
    edit(cluster, "tuning", mode="PredictOnly")
    assert (cluster.status["phase"], last(cluster)) == ("Running", before)
