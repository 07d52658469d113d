"""From a job to its architecture and workload."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.api import Job, SpecError, architecture_of, load_job, to_workload
from memtune.gpus.gpu import GPUS
from memtune.memory.workload import Evaluation
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.model.plain import assumed_architecture

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
ASSUMED = assumed_architecture(1 << 34, 1)
FACTS = {"hiddenSize": 64, "layers": 2, "heads": 4, "ffnSize": 128, "vocabSize": 1000}


def job(model: dict[str, Any] | None = None, **blocks: Any) -> Job:
    training = {"globalBatchSize": 96, "sequenceLength": 128, **blocks.pop("training", {})}
    spec = {"model": model or {"hfConfig": LLAMA}, "training": training, **blocks}
    kind = {"apiVersion": "memtune.dev/v1alpha1", "kind": "MemoryTunedJob"}
    return load_job({**kind, "metadata": {"name": "a"}, "spec": spec})


def test_the_workload_has_the_facts_that_no_plan_changes() -> None:
    peft = {"rank": 8, "targets": ["q_proj"], "baseQuantization": "nf4", "dropout": 0.05}
    made = to_workload(
        job(
            {"hfConfig": LLAMA, "peft": peft},
            training={"compile": True, "varyingLengths": True, "evaluation": {"batchSize": 4, "keepsLogits": True}},
            resources={"nodes": 2, "gpusPerNode": 8},
        ),
        GPUS["h100-80gb"],
    )
    assert (made.global_batch, made.sequence_length, made.world, made.compiled) == (96, 128, 16, True)
    assert made.varying_lengths
    assert not to_workload(job(), GPUS["h100-80gb"]).varying_lengths
    assert made.adapter == Adapter(8, ("q_proj",), "nf4", 0.05)
    assert made.evaluation == Evaluation(4, keeps_logits=True)
    assert isinstance(made.model, Architecture)
    assert (made.model.hidden_size, made.model.kv_heads) == (4096, 32)
    assert made.gpu == GPUS["h100-80gb"]


def test_a_workload_without_adapter_and_evaluation_has_none() -> None:
    made = to_workload(job(), GPUS["h100-80gb"])
    assert made.adapter is None
    assert made.evaluation == Evaluation()


def test_a_sequence_of_more_tokens_than_a_picture_has_is_refused() -> None:
    # 14 x 14 patches and the class token; fewer are valid, as in a masked autoencoder.
    pictures = {"hfConfig": {"model_type": "vit", "image_size": 224, "patch_size": 16}}
    assert to_workload(job(pictures, training={"sequenceLength": 197}), GPUS["h100-80gb"]).sequence_length == 197
    with pytest.raises(SpecError, match=r"sequenceLength: 198 is more than the 197 positions that vit has embeddings"):
        to_workload(job(pictures, training={"sequenceLength": 198}), GPUS["h100-80gb"])


def test_a_model_that_is_only_assumed_contradicts_nothing_that_the_job_says() -> None:
    pair = {"hfConfig": {"model_type": "t5"}}
    made = to_workload(job(pair, training={"targetLength": 64}), GPUS["h100-80gb"], ASSUMED)
    assert made.model is ASSUMED


def test_plain_facts_become_the_architecture() -> None:
    facts = FACTS | {"norm": "layernorm", "experts": {"count": 4, "perToken": 2, "ffnSize": 64}, "qkvBias": True}
    architecture = architecture_of(job({"architecture": facts}))
    assert (architecture.kind, architecture.head_dim, architecture.kv_heads) == (Kind.DECODER, 16, 4)
    assert (architecture.rms_norm, architecture.qkv_bias) == (False, True)
    assert architecture.experts is not None
    assert architecture.experts.count == 4


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"model_type": "lama"}, "spec.model.hfConfig.model_type"),
        ({}, "spec.model.hfConfig.model_type"),
        (LLAMA | {"hidden_size": "big"}, "spec.model.hfConfig.hidden_size"),
    ],
)
def test_a_config_that_cannot_be_read_is_named_by_its_path(config: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        architecture_of(job({"hfConfig": config}))
    (problem,) = caught.value.problems
    assert problem.path == path
    assert problem.advice


def test_a_factory_is_not_predicted_before_it_was_traced() -> None:
    made = job({"factory": "train:build"}, template={"spec": {}})
    with pytest.raises(
        SpecError, match=r"spec\.model\.factory: what a factory builds is known only once it was traced"
    ):
        architecture_of(made)


def _template(command: list[str]) -> dict[str, object]:
    container = {"name": "trainer", "image": "registry.example.com/training", "command": command}
    return {"spec": {"containers": [container]}}


@pytest.mark.parametrize(
    ("integration", "command", "device", "gpus", "without"),
    [
        ("env", ["python", "train.py"], "cuda", 1, True),
        ("env", ["/opt/conda/bin/python3.11", "-u", "train.py"], "cuda", 1, True),
        ("env", ["sh", "-c", "torchrun train.py"], "cuda", 1, False),
        ("env", ["bash", "run.sh"], "cuda", 1, False),
        ("env", [], "cuda", 1, False),
        ("env", ["python", "train.py"], "cuda", 2, False),
        ("lightning", ["python", "train.py"], "cuda", 1, True),
        ("hf-trainer", ["torchrun", "train.py"], "cuda", 1, True),
        ("accelerate", ["python", "train.py"], "cuda", 1, True),
        ("accelerate", ["python", "train.py"], "cuda", 2, False),
        ("hf-trainer", ["accelerate", "launch", "train.py"], "virtual", 1, True),
        ("sdk", ["python", "train.py"], "virtual", 1, False),
    ],
)
def test_a_single_gpu_is_without_a_reducer_where_nothing_wraps_the_model(
    integration: str, command: list[str], device: str, gpus: int, without: bool
) -> None:
    resources = {"gpusPerNode": gpus, "device": device, "gpuMemory": "80Gi"}
    asked = job(integration=integration, resources=resources, template=_template(command))
    assert to_workload(asked, GPUS["h100-80gb"]).without_reducer is without


@pytest.mark.parametrize(
    ("integration", "whole"),
    [("sdk", True), ("env", False), ("lightning", False), ("hf-trainer", False), ("accelerate", False)],
)
def test_the_engine_builds_a_model_before_it_is_sharded_and_autocasts_none(integration: str, whole: bool) -> None:
    asked = job(integration=integration, template=_template(["python", "train.py"]))
    made = to_workload(asked, GPUS["h100-80gb"])
    assert (made.builds_whole, made.without_autocast) == (whole, whole)


def test_the_built_in_trainer_has_a_reducer_on_a_single_gpu() -> None:
    assert not to_workload(job(resources={"gpusPerNode": 1}), GPUS["h100-80gb"]).without_reducer


def test_only_loops_with_accelerate_keep_the_models_output() -> None:
    template = _template(["python", "train.py"])
    asked = [job(integration=integration, template=template) for integration in ("accelerate", "env")]
    assert [to_workload(each, GPUS["h100-80gb"]).keeps_outputs for each in asked] == [True, False]


@pytest.mark.parametrize(
    ("integration", "drops", "defers", "casts", "knows", "plain"),
    [
        ("hf-trainer", True, True, False, True, True),
        ("accelerate", False, True, False, True, False),
        ("lightning", True, False, False, True, False),
        ("sdk", True, False, True, True, False),
        ("env", False, False, False, False, False),
    ],
)
def test_the_integration_decides_what_a_step_keeps(
    integration: str, drops: bool, defers: bool, casts: bool, knows: bool, plain: bool
) -> None:
    asked = job(integration=integration, template=_template(["python", "train.py"]))
    made = to_workload(asked, GPUS["h100-80gb"])
    assert (made.drops_outputs, made.defers_reduction, made.casts_frozen, made.in_transformers, made.plain_sgd) == (
        drops, defers, casts, knows, plain
    )  # fmt: skip


def test_the_built_in_trainer_s_fused_loss_is_known_to_make_its_logits_again() -> None:
    commands = (
        ["python", "-m", "memtune_runner.trainer", "--steps", "100"],
        ["python", "train.py"],
        ["python", "train.py", "--like", "memtune_runner.trainer"],
    )
    asked = (job(), *(job(integration="sdk", template=_template(command)) for command in commands))
    assert [to_workload(each, GPUS["h100-80gb"]).recomputes_loss for each in asked] == [True, True, False, False]
