"""Jobs' runs that together use every feature of a run's pod."""

from __future__ import annotations

from typing import Any

from memtune.api import Job, load_job
from memtune.plans.plan import Plan
from memtune.wire.run import Checkpointed, Run, RunKind

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
    """A template that uses many pod fields, some of which every run has to merge with its own."""
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
    """A job with a host memory request and limit."""
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
