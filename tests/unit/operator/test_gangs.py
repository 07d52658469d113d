"""A run as a gang of pods: its objects, the components that it requires, and which pods count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api import Job, load_job
from memtune.controller import Owned, decide
from memtune.controller.observation import RunObservation
from memtune.plans.plan import Plan
from memtune.wire.run import Run, RunKind
from memtune_operator.pods import gangs, manifests, names
from memtune_operator.pods.gangs import Gang
from memtune_operator.pods.pod_reader import held_back, index_of, owned_through
from memtune_operator.pods.template import read_template
from memtune_operator.settings import SettingsError, read_settings

RUN = Run(RunKind.TRAIN, 1, Plan.parse("bf16-z2-sel-mb4x8"))
JOB_SET = "JobSet.jobset.x-k8s.io"
COSCHEDULER = "scheduler-plugins-scheduler"


def job(name: str = "llama", launcher: str = "Pods", metadata: dict[str, Any] | None = None, **pod: Any) -> Job:
    trainer = {"name": "trainer", "image": "mine:1", "command": ["torchrun", "train.py"]}
    return load_job(
        {
            "apiVersion": "memtune.dev/v1alpha1",
            "kind": "MemoryTunedJob",
            "metadata": {"name": name, "namespace": "research", "uid": "u"},
            "spec": {
                "model": {"factory": "train:build"},
                "training": {"globalBatchSize": 512, "sequenceLength": 128},
                "resources": {"nodes": 2, "gpusPerNode": 8, "gpuMemory": "80Gi"},
                "launcher": launcher,
                "template": {"metadata": metadata or {}, "spec": {"containers": [trainer], **pod}},
            },
        }
    )


def made(one: Job) -> dict[str, Any]:
    """Return the run's objects by kind; of pods the first."""
    found: dict[str, Any] = {}
    for manifest in manifests.objects(one, RUN, "runner:1"):
        found.setdefault(manifest["kind"], manifest)
    return found


def template_of(job_set: dict[str, Any]) -> dict[str, Any]:
    (replicated,) = job_set["spec"]["replicatedJobs"]
    template: dict[str, Any] = replicated["template"]["spec"]["template"]
    return template


@pytest.mark.parametrize(
    ("one", "installed", "expected"),
    [
        (job(), (), ""),
        (job(schedulerName="mine"), (), ""),
        (job(schedulerName="volcano"), (Gang.VOLCANO,), ""),
        (job(schedulerName="volcano"), (Gang.COSCHEDULING,), "spec.template.spec.schedulerName volcano needs"),
        (job(schedulerName=COSCHEDULER), (), f"schedulerName {COSCHEDULER} needs"),
        (job(launcher="JobSet"), (Gang.VOLCANO,), "spec.launcher JobSet needs"),
        (job(launcher="JobSet", schedulerName="volcano"), tuple(Gang), ""),
    ],
)
def test_only_installed_gang_schedulers_are_used(one: Job, installed: tuple[Gang, ...], expected: str) -> None:
    found = gangs.missing_integration(one, read_template(one, "runner:1"), installed)
    assert (found is not None) == bool(expected)
    if found:
        assert found.reason == "GangNotInstalled"
        assert expected in found.message


def test_a_job_without_gangs_has_no_pod_group() -> None:
    assert set(made(job())) == {"Service", "Pod"}


def test_volcano_gets_a_group_in_the_queue_and_with_the_priority_of_the_template() -> None:
    annotated = {"annotations": {"scheduling.volcano.sh/queue-name": "night"}}
    found = made(job(metadata=annotated, schedulerName="volcano", priorityClassName="high"))
    assert found["PodGroup"]["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert found["PodGroup"]["spec"] == {
        "minMember": 2,
        "minResources": {"nvidia.com/gpu": "16"},
        "queue": "night",
        "priorityClassName": "high",
    }
    named = found["Pod"]["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
    assert named == found["PodGroup"]["metadata"]["name"] == "llama-train-1"


def test_coscheduling_gets_a_group_that_its_pods_name() -> None:
    found = made(job(schedulerName=COSCHEDULER))
    assert found["PodGroup"]["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert found["PodGroup"]["spec"] == {"minMember": 2, "minResources": {"nvidia.com/gpu": "16"}}
    assert found["Pod"]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "llama-train-1"


def test_a_job_set_makes_the_same_pods_with_index_and_rendezvous() -> None:
    found = made(job(launcher="JobSet"))
    assert set(found) == {"Service", "JobSet"}
    template, plain = template_of(found["JobSet"]), made(job())["Pod"]
    assert template["spec"]["subdomain"] == plain["spec"]["subdomain"]
    assert "hostname" not in template["spec"]
    assert found["Service"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (container,), (alone,) = template["spec"]["containers"], plain["spec"]["containers"]
    variables = {each["name"]: each for each in container["env"]}
    assert variables["MEMTUNE_NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"].endswith("job-completion-index']")
    assert variables["MEMTUNE_RENDEZVOUS"]["value"].startswith("llama-train-1-node-0-0.llama-train-1.research.svc:")
    assert {**container, "env": None} == {**alone, "env": None}
    differ = {each["name"] for each in alone["env"] if variables[each["name"]] != each}
    assert differ == {"MEMTUNE_NODE_RANK", "MEMTUNE_RENDEZVOUS"}
    (replicated,) = found["JobSet"]["spec"]["replicatedJobs"]
    batch = replicated["template"]["spec"]
    assert (batch["completions"], batch["parallelism"], batch["backoffLimitPerIndex"]) == (2, 2, 0)


def test_kueue_need_not_wait_for_pods_that_replace_failed_ones() -> None:
    """It would keep the quota of a dead run while its pods stay for their logs, and the next run would wait."""
    queued = {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
    annotations = made(job(metadata=queued))["Pod"]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/retriable-in-group"] == "false"


def test_kueue_queues_a_job_set_as_a_whole() -> None:
    queued = {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
    assert made(job(metadata=queued))["Pod"]["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == "llama-train-1"
    job_set = made(job(launcher="JobSet", metadata=queued))["JobSet"]
    assert job_set["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert not [key for key in template_of(job_set)["metadata"]["labels"] if "kueue" in key]


@pytest.mark.parametrize("name", ["a", "x" * 46, "x" * 200, "with.dots"])
def test_objects_of_a_job_set_have_valid_names(name: str) -> None:
    for number in (1, 99999):
        stem = names.job_set_name(name, RunKind.PROBE, number)
        assert len(f"{stem}-{names.REPLICATED_JOB}-0-99999-abcde") <= 63
    assert names.job_set_name(name, RunKind.PROBE, 1) != names.job_set_name(name, RunKind.PROBE, 2)


def owned(name: str, uid: str, owner: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid, "ownerReferences": [{"uid": owner, "controller": True}], **metadata}}


def test_pods_of_a_job_set_count_by_the_uids_of_all_in_between() -> None:
    job_sets = [owned("s", "set", "u")]
    batch_jobs = [owned("b", "batch", "set"), owned("forged", "other", "somebody")]
    pods = [owned("mine", "1", "batch"), owned("forged", "2", "other"), owned("direct", "3", "set")]
    found = owned_through(pods, owned_through(batch_jobs, job_sets))
    assert [pod["metadata"]["name"] for pod in found] == ["mine"]


def test_the_pod_index_is_its_label_or_its_number_in_the_job() -> None:
    completion = {"batch.kubernetes.io/job-completion-index": "3"}
    assert index_of(owned("p", "1", "b", annotations=completion)) == 3
    assert index_of(owned("p", "1", "b", labels={"memtune.dev/index": "1"}, annotations=completion)) == 1
    assert index_of(owned("p", "1", "b", labels={"memtune.dev/index": "x"}, annotations=completion)) is None
    assert index_of(owned("p", "1", "b", annotations={"batch.kubernetes.io/job-completion-index": "1" * 5000})) is None
    assert index_of(owned("p", "1", "b")) is None


def test_a_suspended_job_set_waits_in_its_queue() -> None:
    job_set = {**owned("llama-train-1", "s", "u"), "spec": {"suspend": True}}
    (pod,) = held_back(job_set)
    assert (pod.index, pod.uid) == (0, "")
    assert [(each.type, each.status) for each in pod.conditions] == [("PodScheduled", "False")]
    assert held_back({**job_set, "spec": {}}) == []


def test_the_setting_names_gangs() -> None:
    given = {"MEMTUNE_OPERATOR_RUNNER_IMAGE": "runner:1", "MEMTUNE_OPERATOR_GANGS": "volcano,jobset"}
    assert read_settings(given).gangs == {Gang.VOLCANO, Gang.JOB_SET}
    with pytest.raises(SettingsError, match="GANGS='kueue': kueue is none of volcano, coscheduling, jobset"):
        read_settings({**given, "MEMTUNE_OPERATOR_GANGS": "kueue"})


@pytest.mark.parametrize(("retention", "gone"), [("Failed", {"Service"}), ("None", {"Service", "Pod", JOB_SET})])
def test_a_job_set_stays_as_long_as_pods_of_it_stay_for_their_logs(retention: str, gone: set[str]) -> None:
    fixed = {"mode": "Fixed", "plan": "bf16-z2-full-mb2x8"}
    cluster = SimulatedCluster(make_job(tuning=fixed, podRetention=retention))
    cluster.reconcile()
    (run,) = cluster.runs()

    def deleted() -> set[str]:
        seen = cluster.observe()
        seen = replace(seen, owned=(*seen.owned, Owned(JOB_SET, run, "set", run, holds_pods=True)))
        return {each.kind for each in decide(cluster.job, seen, cluster.now).delete}

    cluster.start(run)
    cluster.reconcile()
    assert deleted() == set()
    cluster.finish(run)
    assert deleted() == gone


def test_a_run_whose_job_set_its_queue_suspends_again_has_been_disrupted() -> None:
    cluster = SimulatedCluster(make_job(tuning={"mode": "Fixed", "plan": "bf16-z2-full-mb2x8"}))
    cluster.reconcile()
    (run,) = cluster.runs()
    cluster.start(run)
    cluster.reconcile()
    suspended = {**owned(run, "s", "u"), "spec": {"suspend": True}}
    seen = replace(cluster.observe(), runs={run: RunObservation(tuple(held_back(suspended)))})
    (attempt,) = decide(cluster.job, seen, cluster.now).status.attempts
    assert attempt.verdict == "disrupted"
