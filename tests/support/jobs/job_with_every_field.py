"""A job with every field, and the complaints about a changed one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from memtune.api import SpecError, load_job

Node = dict[str, Any]
WHOLE: Node = {
    "apiVersion": "memtune.dev/v1alpha1",
    "kind": "MemoryTunedJob",
    "metadata": {"name": "whole", "namespace": "team-a", "labels": {"team": "a"}, "managedFields": []},
    "spec": {
        "model": {
            "architecture": {
                "kind": "decoder",
                "hiddenSize": 64,
                "layers": 2,
                "heads": 4,
                "kvHeads": 2,
                "headDim": 16,
                "ffnSize": 128,
                "vocabSize": 1000,
                "gatedFfn": True,
                "norm": "rmsnorm",
                "normsPerLayer": 2,
                "finalNorm": True,
                "queryKeyNorm": True,
                "qkvBias": True,
                "attentionOutputBias": False,
                "ffnBias": False,
                "tiedEmbeddings": False,
                "encoderLayers": 0,
                "embeddingSize": 0,
                "embeddingNorm": False,
                "positionCount": 128,
                "relativePositionBuckets": 0,
                "tokenTypeCount": 0,
                "pooler": False,
                "head": "classifier",
                "headBias": False,
                "labelCount": 3,
                "experts": {
                    "count": 4,
                    "perToken": 2,
                    "ffnSize": 64,
                    "sharedFfnSize": 0,
                    "denseLayers": 1,
                    "gatedShared": True,
                },
                "hiddenDropout": 0.1,
                "attentionDropout": 0,
            },
            "peft": {"method": "lora", "rank": 8, "targets": ["q_proj"], "baseQuantization": "nf4", "dropout": 0},
        },
        "training": {
            "globalBatchSize": 96,
            "sequenceLength": 128,
            "varyingLengths": True,
            "optimizer": "adamw-8bit",
            "gradientDtype": "fp32",
            "attention": "sdpa",
            "compile": True,
            "compileLoss": True,
            "evaluation": {
                "batchSize": 8,
                "keepsLogits": True,
                "generates": True,
                "generation": {"concurrentSequences": 32, "sequenceTokens": 1000, "pageTokens": 64},
            },
        },
        "resources": {
            "nodes": 2,
            "gpusPerNode": 8,
            "gpuMemory": "80Gi",
            "gpuProduct": "NVIDIA-H100-80GB-HBM3",
            "gpuResource": "nvidia.com/gpu",
            "device": "virtual",
            "memoryShare": "50%",
            "gpuHourPrice": 2.5,
            "nvmePath": "/mnt/nvme",
            "shrink": {"afterStep": 30, "by": "45%"},
        },
        "template": {"spec": {"containers": [{"name": "trainer", "anything": None}]}},
        "integration": "sdk",
        "launcher": "JobSet",
        "runner": {"image": "runner:1", "python": "/usr/bin/python3"},
        "tuning": {
            "mode": "Fixed",
            "plan": "bf16-z2-every4-mb3x2-adamw8bit-g32-sdpa",
            "space": {
                "precision": ["bf16", "fp8"],
                "checkpointing": ["none", "every-4", "full"],
                "zeroStages": [2, 3],
                "offload": ["none", "nvme"],
                "backends": ["deepspeed", "fsdp", "ddp"],
                "fsdpStrategies": ["full", "hybrid"],
                "microBatch": [3, 6],
                "expandableSegments": [False, True],
                "attention": ["sdpa", "eager"],
                "fusedLoss": [False, True],
                "optimizer": ["adamw", "adamw-8bit"],
            },
            "maxProbes": 6,
            "parallelProbes": 2,
            "probeSteps": 4,
            "maxGpuSeconds": 100,
            "emulation": "Never",
            "headroom": "7.5%",
            "objectives": ["throughput", "memory"],
            "slack": "5%",
            "sampler": "TPE",
        },
        "retry": {
            "maxOomRetries": 0,
            "maxDisruptions": 0,
            "nodeLostAfterSeconds": 60,
            "allowRestart": True,
            "consent": ["precision"],
        },
        "checkpoint": {"path": "/ckpt", "volume": {"nfs": {"server": "files", "path": "/exports/a"}}},
        "podRetention": "None",
        "reportLogTail": False,
        "suspend": True,
        "activeDeadlineSeconds": 10,
        "ttlSecondsAfterFinished": 0,
    },
}


def problems(job: Node) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        load_job(job)
    return {problem.path: problem.advice for problem in caught.value.problems}


MISSING = object()


def put(job: Node, path: str, value: Any) -> Node:
    """The job with another value at ``path``, or without one (MISSING); creates missing blocks."""
    changed = copy.deepcopy(job)
    block = changed
    *parents, last = path.split(".")
    for part in parents:
        block = block.setdefault(part, {})
    block[last] = value
    if value is MISSING:
        del block[last]
    return changed
