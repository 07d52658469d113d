"""What a run is made of, against golden files and against the Kubernetes client's own models.

After a change that is meant, write the golden files anew with ``MEMTUNE_WRITE_GOLDEN=1 pytest tests/contract``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from contracts import contract, schema_of
from schema_refusals import refusals
from strict_models import validate

from memtune import environment
from memtune.plan import Plan
from memtune.run import Checkpointed, Run, RunKind
from memtune.spec import Job, load_job
from memtune_operator import manifests

OTHERS = ("PodGroup", "JobSet")
GOLDEN = Path(__file__).parent / "golden"
RUNNER_IMAGE = "registry.example/memtune-runner:1"
PROBE = Run(RunKind.PROBE, 0, Plan.parse("bf16-z2-sel-mb4x8"), seconds=298)
HF_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
}


def job(**spec: Any) -> Job:
    data = {
        "apiVersion": "memtune.dev/v1alpha1",
        "kind": "MemoryTunedJob",
        "metadata": {"name": "llama", "namespace": "research", "uid": "6e1c1d1e-0000-4000-8000-000000000001"},
        "spec": {
            "model": {"hfConfig": HF_CONFIG},
            "training": {"globalBatchSize": 256, "sequenceLength": 4096},
            "resources": {"gpusPerNode": 8, "gpuMemory": "80Gi"},
            **spec,
        },
    }
    return load_job(data)


def rich_template() -> dict[str, Any]:
    """A template that uses much of what pods can have, some of which every run has to merge with its own."""
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    return {
        "metadata": {"labels": {"team": "nlp", "kueue.x-k8s.io/queue-name": "gpus"}, "annotations": {"note": "mine"}},
        "spec": {
            "serviceAccountName": "trainer",
            "priorityClassName": "high",
            "imagePullSecrets": [{"name": "pull"}],
            "securityContext": {"runAsUser": 0, "fsGroup": 100},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
                        ]
                    }
                }
            },
            "initContainers": [{"name": "fetch", "image": "fetch:1"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {
                    "name": "train",
                    "image": "mine:1",
                    "command": ["torchrun", "train.py"],
                    "args": ["--batch", "$(MEMTUNE_MICRO_BATCH)"],
                    "env": [
                        {"name": "TOKEN", "valueFrom": reference},
                        {"name": "B", "value": "$(MEMTUNE_MICRO_BATCH)"},
                    ],
                    "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}, "requests": {"cpu": "8"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
                    "ports": [{"containerPort": 6006}],
                },
            ],
        },
    }


def rich_job(**spec: Any) -> Job:
    return job(
        **spec,
        template=rich_template(),
        integration="hf-trainer",
        resources={"nodes": 2, "gpusPerNode": 8, "gpuMemory": "80Gi", "gpuProduct": "NVIDIA-H100-80GB-HBM3"},
        checkpoint={"path": "/checkpoints", "volume": {"persistentVolumeClaim": {"claimName": "saves"}}},
    )


def group_job(**pod: Any) -> Job:
    container = {"name": "train", "image": "mine:1", "command": ["torchrun", "train.py"]}
    resources = {"nodes": 2, "gpusPerNode": 8, "gpuMemory": "80Gi"}
    return job(template={"spec": {"containers": [container], **pod}}, resources=resources)


def relaunch() -> Run:
    return Run(
        RunKind.TRAIN,
        1,
        Plan.parse("bf16-fsdp-full-mb2x8"),
        resume=Checkpointed("/checkpoints/step-400", 102_400),
        avoided_nodes=("node-b", "node-a"),
        evaluation_batch=2,
        sharded_save=True,
        host_request_bytes=48 * 2**30,
        restarted_at=1,
    )


def bounded_job() -> Job:
    """One that says how much host memory it asks for and may take."""
    resources = {"requests": {"memory": "8Gi"}, "limits": {"memory": "64Gi"}}
    container = {"name": "train", "image": "mine:1", "command": ["torchrun", "train.py"], "resources": resources}
    return job(template={"spec": {"containers": [container]}})


def offloading_probe() -> Run:
    return Run(RunKind.PROBE, 2, Plan.parse("bf16-z2-full-mb4x8-oopt"), host_request_bytes=40 * 2**30)


CASES = {
    "probe-built-in": (job(), PROBE),
    "train-two-nodes": (rich_job(), relaunch()),
    "probe-offloading": (bounded_job(), offloading_probe()),
    "gang-volcano": (group_job(schedulerName="volcano", priorityClassName="high"), PROBE),
    "gang-coscheduling": (group_job(schedulerName="scheduler-plugins-scheduler"), PROBE),
    "job-set": (rich_job(launcher="JobSet"), PROBE),
    "probe-virtual": (job(resources={"gpusPerNode": 1, "gpuMemory": "2Gi", "device": "virtual"}), PROBE),
}


def built(case: str) -> list[dict[str, Any]]:
    return manifests.objects(*CASES[case], RUNNER_IMAGE)


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_made_as_the_golden_file_says(case: str) -> None:
    file = GOLDEN / f"{case}.json"
    text = json.dumps(built(case), indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("MEMTUNE_WRITE_GOLDEN"):
        file.write_text(text)
    assert file.read_text() == text


def variables(**resources: Any) -> dict[str, str]:
    """What the pod of a probe is told by the job's resources."""
    (pod,) = manifests.pods(job(resources=resources), PROBE, RUNNER_IMAGE)
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}


def test_a_rehearsal_is_told_what_its_virtual_gpu_loses() -> None:
    shrink = {"afterStep": 30, "by": "25%"}
    told = variables(gpuMemory="2Gi", device="virtual", shrink=shrink)
    assert told[environment.SHRINK] == f"30:{3 * 2**29}"
    told = variables(gpuMemory="2Gi", device="virtual", shrink=shrink, memoryShare="50%")
    assert (told[environment.SHRINK], told[environment.MEMORY_SHARE]) == (f"30:{3 * 2**28}", "0.5")


def test_a_run_is_told_of_its_share_and_of_its_disk_where_the_job_has_them() -> None:
    plain = variables(gpuMemory="2Gi", device="virtual")
    assert not {environment.MEMORY_SHARE, environment.NVME_PATH} & set(plain)
    assert variables(nvmePath="/mnt/nvme")[environment.NVME_PATH] == "/mnt/nvme"


@pytest.mark.parametrize("case", CASES)
def test_the_kubernetes_client_knows_every_field(case: str) -> None:
    for manifest in built(case):
        if manifest["kind"] in OTHERS:
            validate(manifest["metadata"], "V1ObjectMeta", manifest["kind"])
        else:
            validate(manifest, f"V1{manifest['kind']}", manifest["kind"])


@pytest.mark.parametrize("case", ["gang-volcano", "gang-coscheduling", "job-set"])
def test_the_projects_that_make_groups_of_pods_know_every_field(case: str) -> None:
    (manifest,) = [each for each in built(case) if each["kind"] in OTHERS]
    group, kind = manifest["apiVersion"].partition("/")[0], manifest["kind"].lower()
    schema = schema_of(contract(f"{group}_{kind}s.yaml"))
    assert refusals(schema, manifest, kind) == []
    assert refusals(schema, {**manifest, "spec": {**manifest["spec"], "minMembers": 2}}, kind)


def test_a_job_set_holds_a_pod_that_the_kubernetes_client_knows() -> None:
    (job_set,) = [each for each in built("job-set") if each["kind"] == "JobSet"]
    validate(job_set["spec"]["replicatedJobs"][0]["template"], "V1JobTemplateSpec", "JobSet")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "containers", 0, "commnad"), ["x"]),
        (("spec", "containers", 0, "command"), "x"),
        (("spec", "restartPolicy"), 1),
        (("spec", "containers", 0, "env", 0, "value"), 8),
        (("spec", "volumes", 0, "emptyDir", "size"), "1Gi"),
        (("metadata", "labels", "memtune.dev/index"), 0),
        (("spec", "containers", 0, "name"), None),
    ],
)
def test_the_validation_sees_what_the_api_server_would_refuse(path: tuple[Any, ...], value: Any) -> None:
    (pod,) = manifests.pods(*CASES["probe-built-in"], RUNNER_IMAGE)
    place: Any = pod
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises((AssertionError, ValueError)):
        validate(pod, "V1Pod", "Pod")
