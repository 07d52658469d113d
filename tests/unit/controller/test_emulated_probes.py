"""Emulated probes run the plans that the search proposes before a GPU is requested."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_situations import condition, edit
from simulated_cluster import Pod, SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.api.status import AttemptStatus, EmulationStatus, RunStatus, load_status
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.observation import PodCondition
from memtune.controller.records import plan_of
from memtune.memory.speed import TRUST
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB
from memtune.wire.report import Device, Ending
from memtune.wire.run import RunKind

NAMED = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi", "gpuProduct": "a10g-24gb", "device": "virtual"}


def job(emulation: str = "Auto", **tuning: Any) -> Job:
    return make_job(resources=NAMED, tuning={"emulation": emulation, **tuning})


def emulated(cluster: SimulatedCluster, factor: float = 1.0, made_up_sizes: int = 0, others_bytes: int = 0) -> None:
    """End the waiting emulated probe, on an allocator that takes ``factor`` of the truth, beside other processes."""
    for run in cluster.runs(RunKind.EMULATE):
        cluster.start(run)
        for pod in cluster.of(run):
            if pod.is_running:
                cluster.tick(5.0)
                peak = int(cluster.truth(pod.plan) * factor)
                fits = peak <= cluster.usable_bytes
                ending = Ending.SUCCEEDED if fits else Ending.DEVICE_OOM
                report = cluster.report(pod, ending, device=Device.EMULATED)
                taken = min(peak, cluster.usable_bytes)
                memory = replace(
                    report.memory,
                    peak_reserved_bytes=taken,
                    peak_allocated_bytes=taken,
                    non_torch_bytes=others_bytes,
                    made_up_sizes=made_up_sizes,
                )
                cluster.end(pod, 0 if fits else 85, replace(report, memory=memory))
    cluster.reconcile()


def until_probed(cluster: SimulatedCluster, factor: float = 1.0, made_up_sizes: int = 0, others_bytes: int = 0) -> None:
    """End emulated probes successfully until there is a probe on GPUs or the job has chosen."""
    cluster.reconcile()
    for _ in range(10):
        if cluster.runs(RunKind.PROBE) or cluster.status["phase"] != "Probing":
            return
        emulated(cluster, factor, made_up_sizes, others_bytes)
    raise AssertionError(cluster.events)


def failed(cluster: SimulatedCluster, message: str) -> Pod:
    """Fail the first emulated probe with this message."""
    cluster.reconcile()
    (run,) = cluster.runs(RunKind.EMULATE)
    cluster.start(run)
    (pod,) = cluster.of(run)
    cluster.end(pod, 88, cluster.report(pod, Ending.BAD_INPUT, message=message))
    cluster.reconcile()
    return pod


def test_a_job_that_does_not_ask_for_it_is_not_emulated() -> None:
    cluster = SimulatedCluster(job("Never"))
    cluster.reconcile()
    assert cluster.posted == ["tiny-probe-1-0"]
    assert cluster.status["emulations"] == []


def test_the_first_plan_is_emulated_by_one_pod_before_it_is_probed() -> None:
    cluster = SimulatedCluster(job())
    cluster.reconcile()
    assert cluster.posted == ["tiny-emulate-1-0"]
    assert cluster.services == {}
    (record,) = cluster.status["emulations"]
    assert (record["gpu"], record["emulated"]) == ("a10g-24gb", True)
    assert cluster.pods["tiny-emulate-1-0"].host_request_bytes == record["hostRequestBytes"] > 0
    until_probed(cluster)
    fitting = {each["plan"] for each in cluster.status["emulations"] if each["verdict"] == "succeeded"}
    assert cluster.status["probes"][0]["plan"] in fitting


def test_an_emulated_probe_costs_no_gpu_seconds_and_no_probe() -> None:
    cluster = SimulatedCluster(job(maxProbes=1))
    until_probed(cluster)
    assert cluster.status["gpuSecondsSpent"] == 0
    assert len(cluster.status["probes"]) == 1


def test_a_plan_that_runs_out_of_emulated_memory_is_never_probed() -> None:
    cluster = SimulatedCluster(job())
    until_probed(cluster, factor=1.6)
    died = {each["plan"] for each in cluster.status["emulations"] if each["verdict"] == "device-oom"}
    assert died
    for run in cluster.runs(RunKind.PROBE):
        assert not died & {pod.plan for pod in cluster.of(run)}


def test_a_plan_that_leaves_too_little_as_emulated_is_never_probed() -> None:
    cluster = SimulatedCluster(job())
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    first = pod.plan
    until_probed(cluster, factor=0.97 * cluster.usable_bytes / cluster.truth(first))
    (record, *_) = cluster.status["emulations"]
    assert (record["plan"], record["verdict"]) == (first, "succeeded")
    assert all(each["plan"] != first for each in cluster.status["probes"])


def test_only_launches_without_a_probe() -> None:
    cluster = SimulatedCluster(job("Only"))
    until_probed(cluster)
    cluster.reconcile()
    assert cluster.status["probes"] == []
    assert [run for run in cluster.runs() if "-train-" in run] == ["tiny-train-1"]
    tuned = condition(cluster, "Tuned")
    assert tuned["reason"] == "Emulated"
    assert "is launched without a probe: emulated probe" in tuned["message"]


def test_the_speed_of_a_plan_follows_from_its_emulated_operations() -> None:
    cluster = SimulatedCluster(job("Only"))
    until_probed(cluster)
    plan, records = cluster.status["plan"], cluster.status["emulations"]
    assert all(each["stepSeconds"] == cluster.step_seconds(each["plan"]) for each in records)
    assert any("s a step by its operations" in each for each in cluster.events)
    training, seconds = cluster.job.spec.training, cluster.step_seconds(plan["name"])
    tokens = training.global_batch_size * training.sequence_length
    assert plan["tokensPerSecond"] == pytest.approx(tokens / seconds, rel=0.05)


def test_only_the_seconds_of_emulated_probes_are_said_to_be_those_of_operations() -> None:
    said = {of: str(of.model_fields["step_seconds"].description) for of in (EmulationStatus, AttemptStatus, RunStatus)}
    assert [of for of, text in said.items() if "operations" in text] == [EmulationStatus]


def test_operations_of_made_up_sizes_tell_no_speed() -> None:
    for made_up_sizes, is_known in ((0, True), (3, False)):
        cluster = SimulatedCluster(job("Only"))
        cluster.reconcile()
        (pod,) = cluster.pods.values()
        emulated(cluster, made_up_sizes=made_up_sizes)
        knowledge = knowledge_of(cluster.job, load_status(cluster.status), None)
        seconds = knowledge.predict(Plan.parse(pod.plan)).step_seconds
        assert (seconds.expected == pytest.approx(cluster.step_seconds(pod.plan), rel=0.05)) is is_known
        assert (seconds.upper / seconds.expected < 1 + TRUST / 1.5) is is_known


def test_measured_times_are_not_mixed_with_counted_operations() -> None:
    cluster = SimulatedCluster(job("Only"))
    cluster.reconcile()
    emulated(cluster)
    status = load_status(cluster.status)
    (record,) = (each for each in status.emulations if each.verdict)
    other = plan_of(record).with_micro_batch(1 if plan_of(record).micro_batch > 1 else 2)
    probe = record.model_copy(update={"plan": str(other), "step_seconds": 50 * record.step_seconds})
    timed = status.model_copy(
        update={"probes": (RunStatus.model_validate(probe.model_dump(include=set(RunStatus.model_fields))),)}
    )
    alone = timed.model_copy(update={"emulations": ()})
    both, without = (knowledge_of(cluster.job, each, None).predict(other).step_seconds for each in (timed, alone))
    assert both == without


@pytest.mark.parametrize(("others_bytes", "launched"), [(500 * MIB, True), (GIB, False)])
def test_only_launches_no_plan_beside_which_other_processes_leave_too_little(others_bytes: int, launched: bool) -> None:
    cluster = SimulatedCluster(job("Only"))
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    tight = 0.85 * cluster.usable_bytes / cluster.truth(pod.plan)
    until_probed(cluster, tight, others_bytes=others_bytes)  # 500 MiB are the context of its own process
    assert cluster.status["emulations"][0]["verdict"] == "succeeded"
    attempts = [attempt["plan"] for attempt in cluster.status["attempts"]]
    assert (pod.plan in attempts) is launched


@pytest.mark.parametrize(("made_up_sizes", "launched"), [(0, True), (3, False)])
def test_only_launches_no_tight_plan_whose_sizes_of_tensors_were_made_up(made_up_sizes: int, launched: bool) -> None:
    cluster = SimulatedCluster(job("Only"))
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    tight = 0.9 * cluster.usable_bytes / cluster.truth(pod.plan)
    until_probed(cluster, tight, made_up_sizes)
    (record, *_) = cluster.status["emulations"]
    assert (record["plan"], record["verdict"], record["madeUpSizes"]) == (pod.plan, "succeeded", made_up_sizes)
    assert (", 3 sizes of tensors made up" in " ".join(map(str, cluster.events))) is not launched
    attempts = [attempt["plan"] for attempt in cluster.status["attempts"]]
    assert (pod.plan in attempts) is launched


def test_only_fails_where_nothing_fits_as_emulated() -> None:
    space = {"zeroStages": [1], "checkpointing": ["none"], "backends": ["deepspeed"]}
    cluster = SimulatedCluster(job("Only", space=space), factor=50)
    until_probed(cluster)
    assert condition(cluster, "Failed")["reason"] == "NothingFits"
    assert cluster.status["probes"] == []


@pytest.mark.parametrize("emulation", ["Auto", "Only"])
def test_an_image_without_a_cuda_torch_is_one_sentence_and_probes_follow(emulation: str) -> None:
    cluster = SimulatedCluster(job(emulation))
    failed(cluster, "device emulated: torch 2.13.0+cpu of python was not built for CUDA")
    assert cluster.runs(RunKind.PROBE) == ["tiny-probe-1"]
    (told,) = [each for each in cluster.events if "EmulatedProbeEnded" in each]
    assert "was not built for CUDA" in told
    assert told.endswith("; the job goes on without emulated probes")
    assert len(cluster.status["emulations"]) == 1


def test_an_unschedulable_emulated_pod_is_given_up_after_two_minutes() -> None:
    cluster = SimulatedCluster(job())
    cluster.reconcile()
    (pod,) = cluster.pods.values()
    pod.node, pod.conditions = "", (PodCondition("PodScheduled", "False", "Unschedulable", "0/3 nodes: no amd64"),)
    cluster.tick(100.0)
    assert cluster.runs(RunKind.PROBE) == []
    cluster.tick(30.0)
    assert cluster.runs(RunKind.PROBE) == ["tiny-probe-1"]
    assert cluster.status["emulations"][0]["verdict"] == "unschedulable"
    assert "no amd64" in cluster.status["emulations"][0]["message"]


def test_a_script_that_never_ends_is_given_up_after_ten_minutes() -> None:
    cluster = SimulatedCluster(job())
    cluster.reconcile()
    cluster.start("tiny-emulate-1")
    cluster.tick(590.0)
    assert cluster.runs(RunKind.PROBE) == []
    cluster.tick(30.0)
    assert cluster.status["emulations"][0]["verdict"] == "hung"
    assert cluster.runs(RunKind.PROBE) == ["tiny-probe-1"]


def test_an_unknown_gpu_is_not_emulated() -> None:
    cluster = SimulatedCluster(make_job(tuning={"emulation": "Auto"}))
    cluster.reconcile()
    assert cluster.posted == ["tiny-probe-1-0"]
    assert any("nothing names the GPU: set resources.gpuProduct" in each for each in cluster.events)


def test_an_operator_that_is_killed_after_any_action_goes_on_with_the_same_emulated_probe() -> None:
    for cut in range(4):
        cluster = SimulatedCluster(job())
        for _ in range(6):
            cluster.step(cut)
        cluster.reconcile()
        assert cluster.posted == ["tiny-emulate-1-0"]
        assert len(cluster.status["emulations"]) == 1


def test_a_job_that_is_suspended_stops_its_emulated_probe_and_makes_another_afterwards() -> None:
    cluster = SimulatedCluster(job())
    cluster.reconcile()
    edit(cluster, suspend=True)
    assert cluster.pods == {}
    (record,) = cluster.status["emulations"]
    assert record["endedAt"]
    assert "verdict" not in record
    edit(cluster, suspend=False)
    assert cluster.posted == ["tiny-emulate-1-0", "tiny-emulate-2-0"]


def test_an_edit_to_never_stops_the_emulated_probe_and_probes() -> None:
    cluster = SimulatedCluster(job())
    cluster.reconcile()
    edit(cluster, "tuning", emulation="Never")
    assert cluster.runs() == ["tiny-probe-1"]


def test_an_unknown_gpu_in_the_status_is_ignored() -> None:
    cluster = SimulatedCluster(job())
    cluster.reconcile()
    cluster.status["emulations"][0]["gpu"] = "none-such"
    cluster.reconcile()
    assert cluster.status["emulations"][0]["gpu"] == "a10g-24gb"
