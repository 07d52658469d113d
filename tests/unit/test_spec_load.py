"""Reading a job: a good one whole, and each field wrong in turn."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from memtune.spec import Job, SpecError, load_job
from memtune.spec.crd import object_schema

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
            "peft": {"method": "lora", "rank": 8, "targets": ["q_proj"], "baseQuantization": "nf4"},
        },
        "training": {
            "globalBatchSize": 96,
            "sequenceLength": 128,
            "optimizer": "adamw-8bit",
            "gradientDtype": "fp32",
            "attention": "sdpa",
            "compile": True,
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
        },
        "template": {"spec": {"containers": [{"name": "trainer", "anything": None}]}},
        "integration": "hf-trainer",
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
            },
            "maxProbes": 6,
            "parallelProbes": 2,
            "probeSteps": 4,
            "maxGpuSeconds": 100,
            "headroom": "7.5%",
            "objective": "memory",
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


def dumped(job: Job) -> Node:
    return job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)


def problems(job: Node) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        load_job(job)
    return {problem.path: problem.advice for problem in caught.value.problems}


def put(job: Node, path: str, value: Any) -> Node:
    """The job with another value at ``path``; blocks on the way are made."""
    changed = copy.deepcopy(job)
    block = changed
    *parents, last = path.split(".")
    for part in parents:
        block = block.setdefault(part, {})
    block[last] = value
    return changed


def leaves(schema: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Every field of the schema that is no block of fields itself."""
    if "properties" in schema:
        for name, field in schema["properties"].items():
            yield from leaves(field, f"{path}.{name}")
    else:
        yield path, schema


def wrong_values(schema: Node) -> Iterator[Any]:
    """Values that the schema of one field refuses."""
    yield {"string": 7, "integer": "7", "number": "0.1", "boolean": "yes", "array": "bf16", "object": "x"}[
        schema["type"]
    ]
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "maximum" in schema:
        yield schema["maximum"] + 1
    if schema["type"] == "integer":
        yield 1.5
        yield True
    if "enum" in schema:
        yield "no-such-choice"
    if "pattern" in schema:
        yield "\n"
        yield ""
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    if "maxItems" in schema:
        yield [f"item-{i}" for i in range(schema["maxItems"] + 1)]
    if schema.get("minItems"):
        yield []


FIELDS = list(leaves(object_schema()["properties"]["spec"], "spec"))


def test_a_whole_job_comes_back_as_it_was_given() -> None:
    job = load_job(WHOLE)
    assert dumped(job) == WHOLE["spec"]
    assert (job.metadata.name, job.metadata.namespace) == ("whole", "team-a")


def test_the_whole_job_covers_every_field_but_the_alternatives() -> None:
    def names(block: Node, path: str) -> Iterator[str]:
        for name, value in block.items():
            foreign = name in ("template", "hfConfig")
            yield from names(value, f"{path}.{name}") if isinstance(value, dict) and not foreign else [f"{path}.{name}"]

    missing = {path for path, _ in FIELDS} - set(names(WHOLE["spec"], "spec"))
    assert missing == {
        "spec.model.hfConfig",
        "spec.model.factory",
        "spec.model.architecture.image.size",
        "spec.model.architecture.image.patchSize",
        "spec.model.architecture.image.channels",
        "spec.checkpoint.volume.persistentVolumeClaim.claimName",
        "spec.checkpoint.volume.hostPath.path",
    }


def test_a_short_job_takes_the_defaults_of_the_design() -> None:
    spec = {"model": {"hfConfig": {}}, "training": {"globalBatchSize": 8, "sequenceLength": 1}}
    job = load_job({**WHOLE, "spec": spec})
    assert job.spec.resources.gpu_resource == "nvidia.com/gpu"
    assert job.spec.tuning.headroom_ratio == 0.06
    assert job.spec.tuning.space.zero_stages == (0, 1, 2, 3)
    assert job.spec.retry.max_oom_retries == 4
    assert job.max_gpu_seconds == 600


def test_gpu_seconds_default_to_600_for_each_gpu() -> None:
    job = load_job(put(WHOLE, "spec.tuning.maxGpuSeconds", None))
    assert job.max_gpu_seconds == 600 * 16


def test_null_means_left_out_but_stays_in_what_belongs_to_others() -> None:
    job = load_job(put(put(WHOLE, "spec.tuning.headroom", None), "spec.checkpoint", None))
    assert job.spec.tuning.headroom == "6%"
    assert job.spec.checkpoint is None
    assert job.spec.template == WHOLE["spec"]["template"]


@pytest.mark.parametrize(("path", "schema"), FIELDS, ids=[path for path, _ in FIELDS])
def test_every_field_wrong_in_turn_is_named(path: str, schema: Node) -> None:
    for value in wrong_values(schema):
        found = problems(put(WHOLE, path, value))
        assert any(name == path or name.startswith(f"{path}[") for name in found), (value, found)


def test_an_unknown_field_is_refused_in_every_block() -> None:
    for path in sorted({path.rpartition(".")[0] for path, _ in FIELDS}):
        found = problems(put(WHOLE, f"{path}.zzz", 1))
        assert found[f"{path}.zzz"].startswith("this field is unknown; allowed are ")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("spec.training.sequenceLenght", "sequenceLength"),
        ("spec.training.global_batch_size", "globalBatchSize"),
        ("spec.resources.gpuPerNode", "gpusPerNode"),
        ("spec.tuning.space.zeroStage", "zeroStages"),
        ("spec.runer", "runner"),
    ],
)
def test_a_misspelt_field_is_met_with_the_right_one(path: str, meant: str) -> None:
    assert f"did you mean {meant}?" in problems(put(WHOLE, path, 1))[path]


def test_a_misspelt_choice_is_met_with_the_right_one() -> None:
    advice = problems(put(WHOLE, "spec.training.optimizer", "adamw8bit"))["spec.training.optimizer"]
    assert advice == (
        "adamw8bit is not allowed; did you mean adamw-8bit? use adamw, muon, lion, sgd, adafactor or adamw-8bit"
    )


def test_a_truth_value_is_no_choice() -> None:
    advice = problems(put(WHOLE, "spec.tuning.mode", False))["spec.tuning.mode"]
    assert advice == "false is not allowed; use Probe, PredictOnly or Fixed"


def test_a_missing_field_is_named() -> None:
    job = copy.deepcopy(WHOLE)
    del job["spec"]["training"]["sequenceLength"], job["spec"]["model"]["architecture"]["layers"]
    assert set(problems(job)) == {"spec.training.sequenceLength", "spec.model.architecture.layers"}


def test_an_item_given_twice_is_named() -> None:
    path = "spec.tuning.space.zeroStages"
    assert problems(put(WHOLE, path, [1, 2, 1])) == {path: "1 is given twice; take one out"}


def test_a_wrong_item_is_named_once_with_its_place() -> None:
    found = problems(put(WHOLE, "spec.tuning.space.precision", ["bf17"]))
    assert list(found) == ["spec.tuning.space.precision[0]"]


def test_all_problems_come_at_once_on_a_line_each() -> None:
    job = put(put(WHOLE, "spec.suspend", 1), "metadata.name", "Not A Name")
    with pytest.raises(SpecError) as caught:
        load_job(job)
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["metadata.name", "spec.suspend"]


def test_a_huge_value_is_cut_in_the_message() -> None:
    advice = problems(put(WHOLE, "spec.training.optimizer", "x" * 1_000_000))["spec.training.optimizer"]
    assert len(advice) < 200


@pytest.mark.parametrize("data", [None, [], "text", 7])
def test_what_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(SpecError, match="not a MemoryTunedJob"):
        load_job(data)


def test_another_kind_is_refused() -> None:
    found = problems({**WHOLE, "kind": "Deployment", "apiVersion": "apps/v1"})
    assert set(found) == {"kind", "apiVersion"}
