"""What follows a failed run: the same plan again, a smaller one, or the end, with the reason."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from cluster_situations import SAVED, condition, die, edit, last, launched, probed
from simulated_cluster import SimulatedCluster
from small_jobs import make_job, template

from memtune.api.status import Status, load_status
from memtune.controller import Node, decide
from memtune.controller.context import Context
from memtune.controller.host_requests import host_need
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.observation import PodCondition, RunObservation
from memtune.controller.oom_recovery import after_host_oom, fastest_accepted
from memtune.controller.pods import ExpectedRuns
from memtune.controller.records import plan_of, to_run
from memtune.planning.knowledge import Lesson, PlanKnowledge
from memtune.planning.next_probe import SearchState, most_promising
from memtune.plans.plan import Plan
from memtune.units import GIB, over
from memtune.wire.report import Applied, Ending, Phase
from memtune.wire.run import Run


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


def test_an_out_of_memory_says_in_which_phase_of_the_step() -> None:
    cluster = launched()
    die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.BACKWARD, message="CUDA out of memory", **SAVED)
    assert cluster.status["attempts"][0]["phase"] == "backward"
    assert any("ran out of GPU memory in backward: CUDA out of memory" in event for event in cluster.events)


@pytest.mark.parametrize("begins", ["", "memtune: ", "[rank0]: "])  # the last is that of torch.distributed
def test_a_failure_ends_with_whole_lines_and_repeats_none(begins: str) -> None:
    error = "ValueError: the data is gone"
    lines = [f"line {'x' * 300}", "Traceback (most recent call last):", f"  in read, {'y' * 300}", begins + error]
    log = "\n".join(lines)
    cluster = SimulatedCluster(make_job())
    for _ in range(2):
        cluster.reconcile()
        for run in cluster.runs():
            cluster.start(run)
        die(cluster, Ending.ERROR, 1, log_tail=log, message=error)
    message = condition(cluster, "Failed")["message"]
    assert message.count(error) == 1
    tail = f"Traceback (most recent call last): in read, {'y' * 300}"
    assert f"; its last lines: {tail}. Two runs failed alike" in message


@pytest.mark.parametrize("log", ["epoch 1\nmemtune: {}\n0% [0/6]", "epoch 1\n0% [0/6]memtune: {}"])
def test_a_refusal_between_progress_bars_is_reported_once(log: str) -> None:
    refusal = "give the Learner an optimizer of torch's"
    cluster = launched()
    for _ in range(2):
        die(cluster, Ending.BAD_INPUT, 88, log_tail=log.format(refusal), message=refusal)
        relaunch(cluster)
    message = condition(cluster, "Failed")["message"]
    assert message.count(refusal) == 1
    assert "; its last lines: epoch 1 0% [0/6]. Two runs failed alike" in message


def test_progress_bars_are_not_among_the_last_lines_of_a_log() -> None:
    bar = " 31%|\N{FULL BLOCK}\N{LEFT HALF BLOCK}  | 5/16 [00:00<00:00, 49.58it/s]"
    cluster = launched()
    for _ in range(2):
        die(cluster, Ending.ERROR, 1, log_tail=f"trained\n{bar}\n    upload()\n    ~~~~~~^^\n", message="403")
        relaunch(cluster)
    assert "; its last lines: trained upload(). Two runs" in condition(cluster, "Failed")["message"]


def test_a_failure_that_is_a_sentence_ends_with_one_full_stop() -> None:
    cluster = launched()
    for _ in range(2):
        die(cluster, Ending.ERROR, 1, message="ImportError: Make sure to install it.")
        relaunch(cluster)
    assert "Make sure to install it. Two runs failed alike" in condition(cluster, "Failed")["message"]


def test_two_consecutive_mistakes_are_reported_together() -> None:
    cluster = launched()
    die(cluster, Ending.PLAN_NOT_APPLIED, 89, message="applied.microSteps is 2", **SAVED)
    cluster.reconcile()
    cluster.start(cluster.runs()[-1])
    die(cluster, Ending.BAD_INPUT, 88, message="the checkpoint was not loaded")
    message = condition(cluster, "Failed")["message"]
    assert "failed: the checkpoint was not loaded. Before, attempt 1 " in message
    assert message.endswith("did not apply its plan: applied.microSteps is 2; no more GPUs are spent on the job")


def relaunch(cluster: SimulatedCluster) -> None:
    """Begin the next attempt once its pause is over, if there is one."""
    cluster.tick(600)
    cluster.reconcile()
    for run in cluster.runs():
        cluster.start(run)


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        ("the checkpoint was not loaded", "KeyError: 'tokens'", "Before, attempt 1 "),
        ("KeyError: 'tokens'", "KeyError: 'tokens'", "Two runs failed alike"),
    ],
)
def test_a_training_that_hangs_between_two_mistakes_hides_neither(first: str, then: str, told: str) -> None:
    cluster = launched()
    hang = "no optimizer step ended for 600 s; the stack traces of all threads are in the log"
    for ending, exit_code, message in ((Ending.ERROR, 1, first), (Ending.HUNG, 87, hang), (Ending.ERROR, 1, then)):
        die(cluster, ending, exit_code, message=message, **SAVED)
        relaunch(cluster)
    message = condition(cluster, "Failed")["message"]
    assert f"failed: {then}. {told}" in message
    assert first in message
    assert hang not in message, "a training that hangs is no mistake"
    assert [each["verdict"] for each in cluster.status["attempts"]] == ["user-error", "hung", "user-error"]
    assert cluster.status["disruptions"] == 1


def test_a_mistake_before_an_unrepeatable_hang_is_reported() -> None:
    cluster = launched(make_job(retry={"maxDisruptions": 0}))
    for ending, exit_code, message in ((Ending.ERROR, 1, "KeyError: 'tokens'"), (Ending.HUNG, 87, "it hangs")):
        die(cluster, ending, exit_code, message=message, **SAVED)
        relaunch(cluster)
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "DisruptionsSpent"
    assert "hung: it hangs" in failed["message"]
    assert "KeyError: 'tokens'" in failed["message"]


def test_other_differences_are_reported_beside_a_script_batch() -> None:
    cluster = launched(make_job(template=template()))
    applied = Applied(micro_batch=4096, micro_steps=1, backend="none", compute_dtype="float32", weight_dtype="float16")
    (pod,) = (pod for pod in cluster.pods.values() if pod.is_running)
    cluster.end(pod, 0, cluster.report(pod, Ending.SUCCEEDED, applied=applied))
    runs = ExpectedRuns(cluster.job, load_status(cluster.status), cluster.observe(), cluster.now)
    told = runs[last(cluster)["name"]].pods[0].mismatch
    assert told.startswith("applied.microBatch is 4096, but the plan asks for ")
    assert "; applied.backend is none, but plan " in told
    assert "applied.computeDtype is float32" in told
    assert "applied.weightDtype is float16" in told
    assert (told.count("microBatch is"), told.count("microSteps")) == (1, 0)


def test_a_run_that_applied_another_plan_resumes_from_its_checkpoint() -> None:
    cluster = launched()
    plan = last(cluster)["plan"]
    die(cluster, Ending.SUCCEEDED, 0, applied=Applied(micro_batch=4096), **SAVED)
    assert cluster.status["attempts"][0]["verdict"] == "plan-not-applied"
    after = last(cluster)
    assert (after["number"], after["plan"]) == (2, plan)
    assert (after["resume"], after["resumedSamples"]) == ("direct", 320)
    cluster.start(after["name"])
    die(cluster, Ending.SUCCEEDED, 0, steps=0)
    assert cluster.status["phase"] == "Succeeded"
    expected = f"; of it, attempt 1 ({plan}) did not apply its plan: applied.microBatch is 4096"
    assert expected in condition(cluster, "Complete")["message"]


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ({}, "the runner switches it on"),
        ({"template": template()}, "switch the script's own checkpointing on"),
        ({"template": template(), "integration": "sdk"}, "the runner switches it on"),
    ],
    ids=["built-in trainer", "env", "sdk"],
)
def test_the_advice_on_missing_checkpointing_is_for_whom_it_concerns(spec: dict[str, Any], advice: str) -> None:
    space = {"zeroStages": [1], "checkpointing": ["full"], "backends": ["deepspeed"]}
    cluster = launched(make_job(tuning={"space": space}, **spec))
    die(cluster, Ending.SUCCEEDED, 0, applied=Applied(checkpointed_blocks=0))
    assert advice in cluster.status["attempts"][0]["message"]


TWO_NODES = {"nodes": 2, "gpusPerNode": 1, "gpuProduct": "a100-80gb"}


def test_a_node_that_was_asked_to_stop_is_not_the_cause() -> None:
    cluster = launched(make_job(resources=TWO_NODES))
    cause, echo = cluster.pods.values()
    told = cluster.report(echo, Ending.TERMINATED, failure_order=1, **SAVED)
    cluster.end(echo, 143, told)
    cluster.tick(3.0)
    assert "verdict" not in last(cluster), "the other node has not told yet"
    died = cluster.report(cause, Ending.ERROR, failure_order=0, message="KeyError: 'text'", **SAVED)
    cluster.end(cause, 1, died)
    cluster.reconcile()
    assert (last(cluster)["verdict"], last(cluster)["message"]) == ("user-error", "KeyError: 'text'")


def test_the_peak_of_a_stopped_node_is_not_the_plans_demand() -> None:
    cluster = launched(make_job(resources=TWO_NODES))
    echo, cause = cluster.pods.values()
    before = last(cluster)["plan"]
    much = replace(cluster.report(echo, Ending.TERMINATED).memory, peak_reserved_bytes=30 * GIB, non_torch_bytes=0)
    cluster.end(echo, 85, cluster.report(echo, Ending.TERMINATED, failure_order=1, memory=much, **SAVED))
    cluster.tick(3.0)
    cluster.end(cause, 85, cluster.report(cause, Ending.DEVICE_OOM, failure_order=0, **SAVED))
    cluster.reconcile()
    first = cluster.status["attempts"][0]
    assert (first["verdict"], first["plan"]) == ("device-oom", before)
    assert 0 < first["demandedBytes"] < 30 * GIB


def test_a_missing_report_is_waited_for_a_few_seconds() -> None:
    cluster = launched(make_job(resources=TWO_NODES))
    failed, _ = cluster.pods.values()
    cluster.end(failed, 1, cluster.report(failed, Ending.ERROR, message="NCCL was aborted", **SAVED))
    cluster.reconcile()
    assert "verdict" not in last(cluster)
    cluster.tick(11.0)
    assert cluster.status["attempts"][0]["verdict"] == "user-error"


def test_a_gang_that_never_starts_costs_a_disruption_each_time() -> None:
    fixed = {"mode": "Fixed", "plan": "bf16-z2-full-mb2x4"}
    job = make_job(resources=TWO_NODES, checkpoint=None, tuning=fixed, retry={"maxDisruptions": 2})
    cluster = SimulatedCluster(job)
    cluster.reconcile()
    for _ in range(40):
        for pod, other in zip(*[iter(cluster.pods.values())] * 2, strict=True):
            other.conditions = (PodCondition("PodScheduled", "False", "Unschedulable", "0/1 nodes have 1 GPU"),)
            pod.started_at = pod.started_at or cluster.now
        cluster.tick(100.0)
        if cluster.status["phase"] == "Failed":
            break
    assert condition(cluster, "Failed")["reason"] == "DisruptionsSpent"
    assert [attempt["verdict"] for attempt in cluster.status["attempts"]] == ["disrupted"] * 3
    assert "waited in vain for the others: Unschedulable: 0/1 nodes have 1 GPU" in last(cluster)["message"]
    assert last(cluster)["trained"] is False


def test_the_shown_plan_is_predicted_until_it_is_measured() -> None:
    cluster = launched()
    cluster.usable_bytes = int(cluster.truth(cluster.status["plan"]["name"]) * 0.9)
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
    foretold = dict(cluster.status["plan"])
    assert foretold["name"] == last(cluster)["plan"] == cluster.status["prediction"]["plan"]
    assert foretold["tokensPerSecond"] > 0
    assert re.fullmatch(r"[\d.]+/[\d.]+Gi", foretold["hbm"])
    for run in cluster.runs():
        cluster.start(run)
        cluster.finish(run, tokens_per_second=1234.0)
    cluster.reconcile()
    assert cluster.status["phase"] == "Succeeded"
    peaks = last(cluster)["peakBytes"]
    measured = {"name": foretold["name"], "hbm": over(peaks["device"], peaks["total"]), "tokensPerSecond": 1234}
    assert cluster.status["plan"] == measured != foretold


def test_a_plan_whose_allocator_had_to_retry_is_nothing_to_fall_back_on() -> None:
    knowledge = knowledge_of(make_job(), Status(), None)
    plan = knowledge.ranking.fitting[0].plan
    size = int(knowledge.usable_bytes * 0.5)
    lesson = Lesson(plan, device_bytes=size, reserved_bytes=size)
    assert replace(knowledge, lessons=(lesson,)).keeps_headroom(plan)
    assert not replace(knowledge, lessons=(replace(lesson, retried=True),)).keeps_headroom(plan)


def test_no_plan_as_large_as_a_failed_one_is_tried() -> None:
    knowledge = knowledge_of(make_job(), Status(), None)
    second = knowledge.candidates(())[1].plan
    assert knowledge.predict(second).device.expected < max(
        each.prediction.device.expected for each in knowledge.candidates(())
    )
    lesson = Lesson(second, died=True, demanded_bytes=knowledge.usable_bytes)
    wiser = replace(knowledge, lessons=(lesson,))
    left = [each.prediction.device.expected for each in wiser.candidates(())]
    assert 0 < max(left) < wiser.predict(second).device.expected


def test_the_search_learns_failed_and_fitting_plans() -> None:
    cluster = SimulatedCluster(make_job(tuning={"sampler": "TPE"}))
    cluster.reconcile()
    for pod in cluster.pods.values():
        cluster.start(pod.run)
        cluster.end(pod, 85, cluster.report(pod, Ending.DEVICE_OOM))
    asked: list[SearchState] = []

    def search(state: SearchState) -> None:
        asked.append(state)

    decide(cluster.job, cluster.observe(), cluster.now, search)
    assert (asked[0].sampler, asked[0].seed) == ("TPE", f"{cluster.job.metadata.uid}/2")
    (died,) = asked[0].trials
    assert (died.fits, died.died) == (False, True)
    assert died.plan not in [candidate.plan for candidate in asked[0].choice.candidates]


def test_an_out_of_memory_in_evaluation_lowers_the_evaluation_batch_and_nothing_else() -> None:
    training = {"globalBatchSize": 16, "sequenceLength": 1024, "evaluation": {"batchSize": 6}}
    cluster = launched(make_job(training=training))
    plan = last(cluster)["plan"]
    die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.EVALUATION, **SAVED)
    assert (last(cluster)["plan"], last(cluster)["evaluationBatch"]) == (plan, min(3, Plan.parse(plan).micro_batch))
    assert cluster.status["attempts"][0]["outOfMemory"] == "evaluation"


def test_an_undescribed_evaluation_is_lowered_from_the_scripts_batch() -> None:
    cluster = launched()
    plan = last(cluster)["plan"]
    die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.EVALUATION, applied=Applied(evaluation_batch=64), **SAVED)
    assert (last(cluster)["plan"], last(cluster)["rung"]) == (plan, "evaluation-batch")
    assert last(cluster)["evaluationBatch"] == Plan.parse(plan).micro_batch, "the training has shown that this fits"
    event = " ".join(map(str, cluster.events))
    assert "ran out of GPU memory during an evaluation in batches of 64" in event


def test_a_script_that_keeps_its_evaluation_batch_is_not_asked_twice() -> None:
    cluster = launched()
    plan = last(cluster)["plan"]
    stays = {"phase": Phase.EVALUATION, "applied": Applied(evaluation_batch=64)}
    die(cluster, Ending.DEVICE_OOM, 85, **stays, **SAVED)
    cluster.start(last(cluster)["name"])
    die(cluster, Ending.DEVICE_OOM, 85, **stays, **SAVED)
    after = last(cluster)
    assert after["plan"] != plan
    assert "evaluation-batch" not in after["rung"]
    # Neither makes room for an evaluation.
    assert not {"checkpointing", "micro-batch"} & set(after["rung"].split("+"))


def test_a_script_that_evaluates_in_its_micro_batch_gets_a_smaller_one() -> None:
    cluster = launched()
    plan = Plan.parse(last(cluster)["plan"])
    assert plan.micro_batch > 1
    for _ in range(2):
        taken = Applied(evaluation_batch=plan.micro_batch)
        die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.EVALUATION, applied=taken, **SAVED)
        cluster.start(last(cluster)["name"])
    first, asked, after = cluster.status["attempts"]
    assert (asked["plan"], asked["rung"]) == (first["plan"], "evaluation-batch")
    assert Plan.parse(after["plan"]).micro_batch < plan.micro_batch


@pytest.mark.parametrize(("integration", "moves"), [("hf-trainer", True), ("lightning", False)])
def test_an_evaluation_in_batches_of_one_moves_its_outputs_to_the_host_where_the_integration_can(
    integration: str, moves: bool
) -> None:
    cluster = launched(make_job(integration=integration, template=template()))
    plan = last(cluster)["plan"]
    ones = {"phase": Phase.EVALUATION, "applied": Applied(evaluation_batch=1)}
    die(cluster, Ending.DEVICE_OOM, 85, **ones, **SAVED)
    after = last(cluster)
    told = (after["plan"], after["rung"], after.get("evaluationBatch"))
    assert (told == (plan, "evaluation-outputs", 1)) is moves
    cluster.start(after["name"])
    die(cluster, Ending.DEVICE_OOM, 85, **ones, **SAVED)
    assert "evaluation-outputs" not in last(cluster)["rung"], "they are there already"


@pytest.mark.parametrize(("stage", "gathers"), [(1, False), (3, True)])
def test_an_out_of_memory_in_a_save_changes_gathering_where_there_is_any(stage: int, gathers: bool) -> None:
    space = {"zeroStages": [stage], "checkpointing": ["none", "full"], "backends": ["deepspeed"]}
    cluster = launched(make_job(nodes=2, tuning={"space": space}))
    plan = last(cluster)["plan"]
    die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.SAVE, **SAVED)
    after = last(cluster)
    assert (after["plan"] == plan, after["shardedSave"]) == (gathers, gathers)
    assert not {"checkpointing", "micro-batch"} & set(after["rung"].split("+"))
    event = " ".join(map(str, cluster.events))
    assert "ran out of GPU memory during a save" in event


@pytest.mark.parametrize("integration", ["lightning", "accelerate"])
def test_a_save_that_is_made_of_shards_anyway_is_not_asked_for_them(integration: str) -> None:
    space = {"zeroStages": [3], "checkpointing": ["none", "full"], "backends": ["deepspeed"]}
    cluster = launched(make_job(nodes=2, integration=integration, template=template(), tuning={"space": space}))
    die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.SAVE, **SAVED)
    assert not any(each.get("shardedSave") for each in cluster.status["attempts"])
    assert "sharded-save" not in last(cluster)["rung"]


def test_an_evaluation_that_fits_no_plan_ends_with_advice_for_the_script() -> None:
    cluster = launched(make_job(integration="hf-trainer", template=template(), retry={"maxOomRetries": 9}))
    for _ in range(9):
        if condition(cluster, "Failed")["status"] == "True":
            break
        taken = Applied(evaluation_batch=max(last(cluster).get("evaluationBatch", 0), 1))
        die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.EVALUATION, applied=taken, **SAVED)
        cluster.tick(400.0)
        for run in cluster.runs():
            cluster.start(run)
    told = condition(cluster, "Failed")
    assert told["reason"] == "LadderExhausted"
    assert (
        "let the evaluation keep no logits: prediction_loss_only, or preprocess_logits_for_metrics" in told["message"]
    )
    assert "tuning.space.checkpointing" not in told["message"], "it saves nothing in an evaluation"


def test_a_save_that_fits_no_plan_ends_with_advice_for_the_script() -> None:
    cluster = launched(make_job(integration="hf-trainer", template=template(), retry={"maxOomRetries": 9}))
    for _ in range(9):
        if condition(cluster, "Failed")["status"] == "True":
            break
        die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.SAVE, **SAVED)
        relaunch(cluster)
    told = condition(cluster, "Failed")
    assert told["reason"] == "LadderExhausted"
    assert told["message"].endswith(
        "What would help: let the script make no copies on the GPU of what it saves, but move each tensor to the host "
        "first"
    )


@pytest.mark.parametrize(
    ("integration", "follows", "advice"),
    [
        ("env", True, "let the script keep no outputs"),
        ("env", False, "let the script evaluate in batches of $MEMTUNE_EVALUATION_BATCH"),
        ("accelerate", False, "give accelerator.prepare the evaluation's loader"),
        ("lightning", False, "under Fabric, give setup_dataloaders the evaluation's loader"),
    ],
)
def test_a_script_that_follows_the_evaluation_batch_gets_no_advice(
    integration: str, follows: bool, advice: str
) -> None:
    cluster = launched(make_job(integration=integration, template=template(), retry={"maxOomRetries": 9}))
    for _ in range(9):
        if condition(cluster, "Failed")["status"] == "True":
            break
        asked = last(cluster).get("evaluationBatch", 0)
        taken = Applied(evaluation_batch=asked if follows and asked else 8)
        die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.EVALUATION, applied=taken, **SAVED)
        cluster.tick(400.0)
        for run in cluster.runs():
            cluster.start(run)
    told = condition(cluster, "Failed")
    assert told["reason"] == "LadderExhausted"
    assert advice in told["message"]
    assert ("evaluate in batches of $MEMTUNE_EVALUATION_BATCH" in told["message"]) is not follows
    assert "keep no outputs" in told["message"]


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


def test_disrupted_probes_have_the_same_budget() -> None:
    cluster = SimulatedCluster(make_job(retry={"maxDisruptions": 1}))
    for _ in range(3):
        cluster.reconcile()
        for run in cluster.runs():
            cluster.start(run)
        die(cluster, Ending.TERMINATED, 143)
        cluster.tick(400.0)
    assert condition(cluster, "Failed")["reason"] == "DisruptionsSpent"
    assert [probe.get("verdict") for probe in cluster.status["probes"]][:2] == ["disrupted", "disrupted"]


@pytest.mark.parametrize(("ending", "code"), [(Ending.DEVICE_OOM, 85), (Ending.HOST_OOM, 86)])
def test_the_budget_for_out_of_memory_ends(ending: Ending, code: int) -> None:
    cluster = launched(make_job(retry={"maxOomRetries": 0}))
    die(cluster, ending, code, **SAVED)
    assert condition(cluster, "Failed")["reason"] == "OomRetriesSpent"
    assert "retry.maxOomRetries" in condition(cluster, "Failed")["message"]


def test_host_memory_is_raised_within_the_template_and_never_shrinks_the_batch() -> None:
    cluster = launched()
    plan = last(cluster)["plan"]
    die(cluster, Ending.HOST_OOM, 86, **SAVED)
    assert last(cluster)["plan"] == plan
    assert last(cluster)["hostRequestBytes"] > 0


def test_host_memory_at_its_limit_ends_the_job_with_advice() -> None:
    cluster = launched(make_job(template=template(limits={"memory": "1Gi"})))
    die(cluster, Ending.HOST_OOM, 86, **SAVED)
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "HostMemory"
    assert "limits.memory is 1.0 GiB: raise it" in failed["message"]


def test_more_host_memory_is_asked_for_once_where_the_containers_own_limit_killed_it() -> None:
    asks = template(requests={"memory": "8Gi"}, limits={"memory": "64Gi"})
    cluster = launched(make_job(template=asks, tuning={"maxProbes": 1}))
    (pod,) = cluster.pods.values()
    cluster.end(pod, 137)
    killed = replace(pod.seen(), exit_reason="OOMKilled", report=None)
    observed = replace(cluster.observe(), runs={pod.run: RunObservation((killed,))})
    first = decide(cluster.job, observed, cluster.now).status
    assert first.attempts[-1].verdict == "host-oom"
    last_run = first.attempts[-1]
    knowledge = knowledge_of(cluster.job, first, None)
    context = Context(cluster.job, observed, cluster.now, most_promising, first, observed.runs)
    again = after_host_oom(context, knowledge, last_run)
    assert again is not None
    assert (again.rung, again.host_request_bytes) == ("host-memory", 12 * GIB)
    assert after_host_oom(context, knowledge, last_run.model_copy(update={"host_request_bytes": 12 * GIB})) is None


def test_a_run_killed_while_converting_requests_the_needed_memory() -> None:
    cluster = launched(make_job(template=template(requests={"memory": "1Gi"}, limits={"memory": "1000Gi"})))
    observed = cluster.observe()
    status = decide(cluster.job, observed, cluster.now).status
    converting = status.attempts[-1].model_copy(update={"resume": "convert"})
    knowledge = knowledge_of(cluster.job, status, None)
    plan = plan_of(converting)
    needed = host_need(knowledge, plan, "convert")
    assert needed > host_need(knowledge, plan, "no")
    context = Context(cluster.job, observed, cluster.now, most_promising, status, observed.runs)
    again = after_host_oom(context, knowledge, converting)
    assert again is not None
    assert (again.rung, again.host_request_bytes) == ("host-memory", needed)


def test_a_gpu_that_is_broken_is_a_disruption_and_its_nodes_fault() -> None:
    cluster = launched()
    for pod in cluster.pods.values():
        pod.node = "node-b"
    die(cluster, Ending.ERROR, 1, message="CUDA error: uncorrectable ECC error encountered", **SAVED)
    first = cluster.status["attempts"][0]
    assert (first["verdict"], first["lostNode"], cluster.status["disruptions"]) == ("disrupted", "node-b", 1)
    assert last(cluster)["plan"] == first["plan"]


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


def test_two_different_mistakes_are_both_reported() -> None:
    cluster = SimulatedCluster(make_job())
    for message in ("KeyError: 'tokens'", "ValueError: no labels"):
        cluster.reconcile()
        for run in cluster.runs():
            cluster.start(run)
        die(cluster, Ending.ERROR, 1, message=message)
    told = condition(cluster, "Failed")["message"]
    assert "ValueError: no labels. Before, probe 1 " in told
    assert "KeyError: 'tokens'; no more GPUs are spent on the job" in told
    assert "twice" not in told


@pytest.mark.parametrize(("ending", "exit_code", "reason"), [(Ending.ERROR, 1, "UserError"), (Ending.HUNG, 87, "Hung")])
def test_a_mistake_that_took_the_only_probe_there_may_be_ends_the_job_with_its_last_lines(
    ending: Ending, exit_code: int, reason: str
) -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxProbes": 1}))
    cluster.reconcile()
    for run in cluster.runs():
        cluster.start(run)
    die(cluster, ending, exit_code, log_tail="Traceback\nKeyError: 'tokens'", message="KeyError")
    failed = condition(cluster, "Failed")
    assert (failed["reason"], len(cluster.status["probes"])) == (reason, 1)
    assert "KeyError: 'tokens'" in failed["message"]
    assert "maxProbes" in failed["message"]
    assert "twice" not in failed["message"]


def test_the_last_probes_failure_is_reported_beside_an_earlier_mistake() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxProbes": 2}))
    for ending, exit_code, why in ((Ending.ERROR, 1, "KeyError: 'tokens'"), (Ending.HOST_OOM, 86, "pinned memory")):
        cluster.reconcile()
        for run in cluster.runs():
            cluster.start(run)
        die(cluster, ending, exit_code, message=why)
    for _ in range(9):
        cluster.tick(600)
        cluster.reconcile()
    told = condition(cluster, "Failed")["message"]
    last = cluster.status["probes"][-1]
    assert "KeyError: 'tokens'. No probe is left: " in told
    assert told.endswith(f"; probe {last['number']} ({last['plan']}) ran out of host memory: pinned memory")


def test_a_mistake_without_a_second_try_is_not_called_a_plan_that_does_not_fit() -> None:
    cluster = launched(make_job(checkpoint=None))
    die(cluster, Ending.ERROR, 1, steps=30, message="ValueError: bad sample 77")
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "NotResumable"
    assert "bad sample 77; it cannot go on: the job has no spec.checkpoint" in failed["message"]
    assert "would fit" not in failed["message"]


def test_without_a_checkpoint_a_run_that_trained_is_not_started_again_from_step_0() -> None:
    cluster = launched(make_job(checkpoint=None))
    die(cluster, Ending.TERMINATED, 143, steps=30)
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "NotResumable"
    assert "allowRestart" in failed["message"]


@pytest.mark.parametrize(("saved", "is_told"), [({}, True), (SAVED, False)])
def test_a_training_that_begins_anew_says_that_nothing_was_saved(saved: dict[str, Any], is_told: bool) -> None:
    cluster = launched()
    die(cluster, Ending.DEVICE_OOM, 85, **{"steps": 30, **saved})
    relaunch(cluster)
    (told,) = [text for text in cluster.events if "attempt 2 trains on" in text]
    assert (", from the start, since no checkpoint was saved that it could resume from" in told) is is_told, told


def test_with_consent_a_run_without_a_checkpoint_starts_again_from_step_0() -> None:
    cluster = launched(make_job(checkpoint=None, retry={"allowRestart": True}))
    die(cluster, Ending.TERMINATED, 143, steps=30)
    assert (last(cluster)["number"], last(cluster)["resume"]) == (2, "no")


def test_a_plan_that_the_checkpoint_cannot_go_on_under_is_named_and_not_launched() -> None:
    cluster = _needing_another_stage()
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "NotResumable"
    assert "bf16-z3-full-mb1x1" in failed["message"]


def test_with_consent_an_incompatible_plan_starts_from_step_0_and_saves_anew() -> None:
    cluster = _needing_another_stage(retry={"allowRestart": True})
    second = last(cluster)
    assert (second["plan"], second["resume"], second["restartedAt"]) == ("bf16-z3-full-mb1x1", "no", 2)
    _taken_away(cluster, checkpoint_samples=None, checkpoint_format=None)
    third = last(cluster)
    assert (third["number"], third["resume"], third["restartedAt"]) == (3, "no", 2)
    _taken_away(cluster, checkpoint_samples=160, checkpoint_format="script")
    fourth = last(cluster)
    assert (fourth["resume"], fourth["resumedSamples"], fourth["restartedAt"]) == ("direct", 160, 2)
    status = load_status(cluster.status)
    assert to_run(cluster.job, status, status.attempts[-1], 0).restarted_at == 2


def _taken_away(cluster: SimulatedCluster, **variables: Any) -> None:
    for run in cluster.runs():
        cluster.start(run)
    cluster.reconcile()
    die(cluster, Ending.TERMINATED, 143, steps=30, **variables)
    cluster.tick(400.0)


def _needing_another_stage(**asked: Any) -> SimulatedCluster:
    """Return a job that saved under stage 1 and whose GPUs now have room only for stage 3."""
    template = {"spec": {"containers": [{"name": "trainer", "image": "mine", "command": ["python", "train.py"]}]}}
    space = {"zeroStages": [1, 3], "checkpointing": ["full"], "backends": ["deepspeed"]}
    training = {"globalBatchSize": 8, "sequenceLength": 256}
    facts = {"hiddenSize": 4096, "layers": 8, "heads": 32, "vocabSize": 8000, "ffnSize": 16384}
    resources = {"nodes": 8, "gpusPerNode": 1, "gpuMemory": "40Gi", "device": "virtual"}
    asked |= {"model": {"architecture": facts}, "resources": resources, "training": training}
    cluster = launched(make_job(8, template=template, tuning={"space": space}, **asked))
    assert last(cluster)["plan"] == "bf16-z1-full-mb1x1"
    cluster.usable_bytes = int(cluster.truth("bf16-z3-full-mb1x1") * 1.2)
    die(cluster, Ending.DEVICE_OOM, 85, **{**SAVED, "checkpoint_format": "script"})
    return cluster


@pytest.mark.parametrize(
    ("opened", "suffix", "rung"),
    [
        (["adamw", "adamw-8bit"], "-adamw8bit", "optimizer-8bit"),
        (["adamw", "sgd"], "-sgd", "optimizer"),
    ],
)
def test_an_optimizer_that_the_space_opens_is_taken_after_an_out_of_memory_without_more_consent(
    opened: list[str], suffix: str, rung: str
) -> None:
    space = {"zeroStages": [1], "checkpointing": ["full"], "backends": ["deepspeed"], "microBatch": [4]}
    cluster = launched(make_job(tuning={"space": space}))
    before = last(cluster)["plan"]
    edit(cluster, "tuning", space=make_job(tuning={"space": {**space, "optimizer": opened}}).spec.tuning.space)
    assert cluster.truth(before + suffix) < 0.95 * cluster.truth(before)
    cluster.usable_bytes = int(cluster.truth(before) * 0.97)
    die(cluster, Ending.DEVICE_OOM, 85, steps=0)
    after = last(cluster)
    assert (after["number"], after["rung"]) == (2, rung), (after, cluster.events[-3:])
    assert suffix in after["plan"]


def test_a_plan_that_the_job_fixes_keeps_its_numerics_after_an_out_of_memory() -> None:
    cluster = launched(make_job(tuning={"mode": "Fixed", "plan": "bf16-z1-none-mb4x4-fl"}))
    cluster.usable_bytes = int(cluster.truth(last(cluster)["plan"]) * 0.9)
    die(cluster, Ending.DEVICE_OOM, 85, steps=0)
    assert (last(cluster)["plan"], last(cluster)["rung"]) == ("bf16-z1-full-mb4x4-fl", "checkpointing")


@pytest.mark.parametrize(
    ("space", "before", "after", "is_consented"),
    [
        ({}, "-adamw8bit", "", False),
        ({"optimizer": ["adamw", "adamw-8bit"]}, "-adamw8bit", "", True),
        ({"optimizer": ["adamw", "adamw-8bit"]}, "", "-sgd", False),
        ({}, "-eager", "", False),
        ({"attention": ["flash", "eager"]}, "-eager", "", True),
        ({}, "-fl", "", False),
        ({"fusedLoss": [True]}, "", "-fl", False),
        ({"fusedLoss": [False, True]}, "-fl", "", True),
        ({"precision": ["bf16", "fp16"]}, "", "fp16", False),
    ],
)
def test_only_choices_named_in_the_space_are_consent(
    space: dict[str, Any], before: str, after: str, is_consented: bool
) -> None:
    def known(tuning: dict[str, Any]) -> PlanKnowledge:
        small = {"zeroStages": [1], "checkpointing": ["full"], "backends": ["deepspeed"], "microBatch": [4]}
        return knowledge_of(make_job(tuning={**tuning, "space": {**small, **space}}), Status(), None)

    old, new = (f"bf16-z1-full-mb4x4{suffix}" for suffix in (before, after))
    wanted = Plan.parse(new if after != "fp16" else "fp16-z1-full-mb4x4")
    found = fastest_accepted(_knowing(known({}), wanted), Plan.parse(old), wanted.__eq__)
    assert found == (wanted if is_consented else None)
    fixed = known({"mode": "Fixed", "plan": "bf16-z1-full-mb4x4"})
    assert fastest_accepted(_knowing(fixed, wanted), Plan.parse(old), wanted.__eq__) is None


def _knowing(knowledge: PlanKnowledge, plan: Plan) -> PlanKnowledge:
    """The knowledge after a probe of this plan, which fits."""
    return replace(knowledge, lessons=(Lesson(plan, device_bytes=GIB, step_seconds=1.0),))


def test_an_exhausted_ladder_shows_the_memory_needed() -> None:
    cluster = launched()
    cluster.usable_bytes = GIB
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
    failed = condition(cluster, "Failed")
    assert failed["reason"] == "LadderExhausted"
    assert "What would help" in failed["message"]


def test_the_memory_needed_follows_from_measurements() -> None:
    """Probes measured a quarter more than predicted."""
    told = {}
    for factor in (1.0, 1.25):
        cluster = probed(make_job(), factor)
        cluster.usable_bytes = GIB
        die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
        message = condition(cluster, "Failed")["message"]
        told[factor] = float(message.split("set resources.gpuMemory to at least ")[1].split()[0])
    assert told[1.25] > 1.15 * told[1.0]


def lost_twice(nodes: tuple[Node, ...] | None) -> SimulatedCluster:
    """Return a job with two attempts that died on the same node."""
    cluster = launched()
    cluster.nodes = nodes
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
    return cluster


@pytest.mark.parametrize(
    ("nodes", "avoided"),
    [
        (None, ("node-b",)),
        ((Node("node-a"), Node("node-b")), ("node-b",)),
        ((Node("node-b"),), ()),
    ],
    ids=["unknown", "another", "no other"],
)
def test_a_node_that_took_two_attempts_down_is_avoided_where_there_is_another(
    nodes: tuple[Node, ...] | None, avoided: tuple[str, ...]
) -> None:
    cluster = lost_twice(nodes)
    # The attempt is the newest, so its missing pods are created again.
    observed = cluster.observe()
    raw = observed.status
    raw["attempts"][-1] |= {"created": False}
    runs = decide(cluster.job, replace(observed, status=raw, runs={}), cluster.now).create
    assert [run.avoided_nodes for run in runs if isinstance(run, Run)] == [avoided]


def test_a_run_that_waits_says_which_nodes_it_avoids() -> None:
    cluster = lost_twice(None)
    for pod in cluster.pods.values():
        if pod.is_running:
            pod.started_at = None
            pod.conditions = (PodCondition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available"),)
    cluster.reconcile()
    said = "Unschedulable: 0/1 nodes are available (node-b is avoided, which took two attempts down)"
    assert condition(cluster, "Stalled")["message"] == said


@pytest.mark.parametrize("is_ended", [False, True], ids=["while it runs", "when it has ended"])
def test_a_probe_whose_node_may_be_lost_is_looked_at_again(is_ended: bool) -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    cluster.start(pod.run)
    if is_ended:
        pod.deleting, pod.conditions = True, (PodCondition("DisruptionTarget", "True", "DeletionByTaintManager"),)
    pod.node_doubted = True
    cluster.reconcile()
    assert cluster.wake_after is not None
    assert cluster.wake_after <= 30.0
    pod.node_lost = True
    cluster.tick(60.0)
    first, second = cluster.status["probes"]
    assert (first["verdict"], second["plan"]) == ("disrupted", first["plan"])


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


def test_the_last_two_failed_runs_keep_their_terminated_pods() -> None:
    cluster = probed(make_job(tuning={"headroom": "6%"}), factor=1.6)
    failed = [each["name"] for each in cluster.status["probes"] if each.get("verdict") != "succeeded"]
    kept = {pod.run for pod in cluster.pods.values() if not pod.is_running}
    assert kept == set(failed[-2:])
    none = probed(make_job(podRetention="None"), factor=1.6)
    assert all(pod.is_running for pod in none.pods.values())


FIXED = {"mode": "Fixed", "plan": "bf16-z2-full-mb2x8"}


def test_a_job_whose_status_was_lost_takes_back_the_run_of_its_plan() -> None:
    cluster = launched(make_job(tuning=FIXED))
    (pod,) = cluster.pods.values()
    cluster.status = {}
    cluster.reconcile()
    assert (cluster.status["phase"], last(cluster)["number"]) == ("Running", 1)
    assert cluster.posted == [pod.name]
    assert pod.is_running


def test_a_pod_of_an_earlier_job_is_waited_for_and_ignored() -> None:
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


def test_a_pod_of_another_plan_is_not_taken_back() -> None:
    cluster = launched(make_job(tuning=FIXED))
    (old,) = cluster.pods.values()
    old.plan, old.is_stuck = "bf16-z1-none-mb2x8", True
    cluster.status = {}
    cluster.reconcile()
    assert old.deleting, "it trains what nobody asked for"
    assert "startedAt" not in last(cluster)


def test_an_unrecorded_run_is_deleted_before_another_starts() -> None:
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


def test_resumed_samples_come_from_the_runs_report() -> None:
    cluster = launched()
    die(cluster, Ending.TERMINATED, 143, steps=30)
    assert last(cluster)["resumedSamples"] == 0, "nobody could tell of a checkpoint"
    for run in cluster.runs():
        cluster.start(run)
    die(cluster, Ending.SUCCEEDED, 0, resumed_samples=160)
    assert last(cluster)["resumedSamples"] == 160


def test_a_failed_resume_is_not_claimed_and_keeps_the_checkpoint() -> None:
    cluster = launched()
    die(cluster, Ending.TERMINATED, 143, **SAVED)
    assert (last(cluster)["resume"], last(cluster)["resumedSamples"]) == ("direct", 320)
    for run in cluster.runs():
        cluster.start(run)
    die(cluster, Ending.BAD_INPUT, 88, **{**SAVED, "steps": 0}, resumed_samples=0)
    unloaded, again = cluster.status["attempts"][-2:]
    assert (unloaded["verdict"], unloaded["resumedSamples"]) == ("user-error", 0)
    assert (again["resume"], again["resumedSamples"]) == ("direct", 320)


def test_a_training_that_began_from_another_jobs_checkpoint_says_so_at_its_end() -> None:
    cluster = launched()
    die(cluster, Ending.SUCCEEDED, 0, resumed_samples=160)
    assert last(cluster)["resume"] == "no"
    assert "it went on from 160 samples that another job saved" in condition(cluster, "Complete")["message"]


def test_the_progress_of_an_unreported_checkpoint_is_not_claimed() -> None:
    cluster = launched()
    die(cluster, Ending.TERMINATED, 143, **SAVED)
    assert last(cluster)["resumedSamples"] == 320
    for run in cluster.runs():
        cluster.start(run)
    cluster.reconcile()
    for pod in cluster.pods.values():
        cluster.end(pod, 143)
    cluster.reconcile()
    cluster.tick(20.0)
    assert last(cluster)["number"] == 3
    assert (last(cluster)["resume"], last(cluster)["resumedSamples"]) == ("direct", 0)
    assert "from the newest checkpoint" in condition(cluster, "Launched")["message"]
    assert "320" not in condition(cluster, "Launched")["message"]


NO_SUCH_ARGUMENT = "train.py: error: unrecognized arguments: --lr-rate=3"


def test_a_command_that_no_plan_mends_costs_one_probe_and_one_line() -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    cluster.start(cluster.runs()[0])
    die(cluster, Ending.ERROR, 2, message=NO_SUCH_ARGUMENT, bad_command=True, steps=None, log_tail="usage: train.py")
    assert [each["verdict"] for each in cluster.status["probes"]] == ["user-error"]
    plan = cluster.status["probes"][0]["plan"]
    message = condition(cluster, "Failed")["message"]
    assert message == (
        f"probe 1 ({plan}) failed: {NO_SUCH_ARGUMENT}; its last lines: usage: train.py. "
        "Under any other plan it would fail alike"
    )
    assert [each for each in cluster.events if NO_SUCH_ARGUMENT in each] == [f"UserError: {message}"]


@pytest.mark.parametrize(
    "variables", [{"steps": None}, {"bad_command": True, "steps": 3}], ids=["any-mistake", "trained"]
)
def test_a_command_whose_failure_may_be_the_plans_is_tried_under_another(variables: dict[str, Any]) -> None:
    cluster = SimulatedCluster(make_job())
    cluster.reconcile()
    cluster.start(cluster.runs()[0])
    die(cluster, Ending.ERROR, 2, message=NO_SUCH_ARGUMENT, **variables)
    cluster.tick(600)
    cluster.reconcile()
    assert len(cluster.status["probes"]) == 2


def test_an_attempt_whose_command_no_plan_mends_is_not_made_again() -> None:
    cluster = launched(make_job(tuning=FIXED))
    die(cluster, Ending.BAD_INPUT, 88, message="there is no script train.py", bad_command=True, steps=None)
    assert condition(cluster, "Failed")["status"] == "True"
    assert len(cluster.status["attempts"]) == 1


def test_a_command_that_has_worked_before_is_tried_again() -> None:
    cluster = launched(make_job())
    die(cluster, Ending.BAD_INPUT, 88, message="there is no script /data/train.py", bad_command=True, steps=None)
    assert [each.get("verdict") for each in cluster.status["attempts"]] == ["user-error", None]
