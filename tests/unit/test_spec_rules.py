"""The rules over several fields: the Python half and the CEL half of the table say the same of the same specs."""

from __future__ import annotations

from typing import Any

import pytest
from broken_rules import BROKEN, CLAIM, EXPERTS, IMAGE, NFS, fixed
from spec_rules import POD, defaulted, holds, job, spec

from memtune.spec import Problem, SpecError, load_job
from memtune.spec.rule import Rule
from memtune.spec.rules import RULES


def problem(made: dict[str, Any]) -> Problem:
    with pytest.raises(SpecError) as caught:
        load_job(job(made))
    assert len(caught.value.problems) == 1, str(caught.value)
    return caught.value.problems[0]


GOOD = [
    spec(),
    spec(model={"architecture": None, "hfConfig": {}}),
    spec(model={"architecture": None, "factory": "a:b"}, template=POD),
    spec(integration="sdk", template=POD),
    spec(resources={"nodes": 2, "gpusPerNode": 8}, tuning__space={"fsdpStrategies": ["hybrid"]}),
    spec(resources={"device": "virtual", "gpuMemory": "2Gi"}),
    spec(resources={"device": "virtual", "gpuMemory": "2Gi", "shrink": {"afterStep": 3, "by": "40%"}}),
    spec(tuning={"maxProbes": 2, "parallelProbes": 2}),
    fixed("bf16-z2-sel-mb12x8"),
    fixed("bf16-z2-sel-mb12x4-oopt-bk50m", resources={"gpusPerNode": 2}),
    fixed("bf16-z2-sel-mb12x8-lion", training={"optimizer": "lion"}),
    spec(tuning__space={"offload": ["optimizer+parameters"], "backends": ["fsdp"]}),
    spec(
        tuning__space={"offload": ["optimizer+parameters", "nvme"], "backends": ["deepspeed"], "zeroStages": [3]},
        resources={"nvmePath": "/mnt/nvme"},
    ),
    spec(tuning__space={"offload": ["none", "activations"], "backends": ["ddp"]}),
    spec(checkpoint={"volume": CLAIM}),
    spec(checkpoint={"volume": NFS}),
    spec(checkpoint={"volume": {"hostPath": {"path": "/a"}}}),
    spec(checkpoint={}),
    spec(model__architecture={"heads": 5, "headDim": 16, "kvHeads": 1}),
    spec(model__architecture={"kind": "encoder-decoder", "encoderLayers": 2}),
    spec(model__architecture={"experts": EXPERTS | {"denseLayers": 1}}),
    spec(model__architecture={"ffnSize": None, "experts": EXPERTS}),
    spec(model__architecture={"kind": "vision", "vocabSize": None, "image": IMAGE}),
    spec(model__architecture={"head": "classifier", "labelCount": 2}),
]


def upheld(rule: Rule, made: dict[str, Any]) -> bool:
    """Whether the API server would accept the spec by this rule, with the defaults filled in."""
    block: Any = {"spec": defaulted(made)}
    for part in rule.owner.split("."):
        block = block.get(part)
        if block is None:
            return True
    return holds(rule.cel, self=block)


@pytest.mark.parametrize(("words", "made", "path"), BROKEN, ids=[f"{path}-{words}" for words, _, path in BROKEN])
def test_a_broken_rule_is_refused_by_both_halves(words: str, made: dict[str, Any], path: str) -> None:
    assert problem(made).path == path
    assert [rule.message for rule in RULES if not upheld(rule, made)] == [
        rule.message for rule in RULES if rule.message.startswith(words)
    ]


def test_a_good_spec_passes_both_halves() -> None:
    for made in GOOD:
        load_job(job(made))
        assert [rule.message for rule in RULES if not upheld(rule, made)] == []


def test_every_rule_is_broken_by_an_example() -> None:
    unbroken = [r.message for r in RULES if not any(r.message.startswith(words) for words, _, _ in BROKEN)]
    assert unbroken == []


@pytest.mark.parametrize(
    ("plan", "advice"),
    [
        ("bf16-z9-sel-mb12x8", "'z9' is not one of ddp, z0,"),
        ("bf16-ddp-sel-mb12x8-oopt", "DDP cannot offload optimizer"),
        ("bf16-z2-sel-mb12x8-lion", "has optimizer lion, and training.optimizer is adamw; make them the same"),
        ("bf16-z2-sel-mb12x8-g32", "has gradientDtype fp32, and training.gradientDtype is model"),
        ("bf16-z2-sel-mb12x8-eager", "has attention eager, and training.attention is flash"),
        ("fp32-z2-sel-mb12x8", "fp32-z2-sel-mb12x8 cannot run: flash attention has no fp32 kernel; use sdpa"),
        ("bf16-z0-sel-mb12x8-oopt", "cannot run: offload optimizer needs ZeRO 1 or more, or FSDP"),
        ("bf16-z2-sel-mb4x8", "makes 32 sequences a step on 1 GPU, and training.globalBatchSize is 96; micro-batch x"),
        ("bf16-z2-sel", "write it like bf16-z2-sel-mb4x8"),
        ("bf16-z2-sel-mb0x8", "write it like bf16-z2-sel-mb4x8"),
    ],
)
def test_a_fixed_plan_that_cannot_train_the_job_is_told_why(plan: str, advice: str) -> None:
    found = problem(fixed(plan))
    assert found.path == "spec.tuning.plan"
    assert advice in found.advice


def test_several_broken_rules_come_at_once() -> None:
    made = spec(training={"globalBatchSize": 97}, integration="sdk", resources={"gpusPerNode": 8})
    with pytest.raises(SpecError) as caught:
        load_job(job(made))
    assert {p.path for p in caught.value.problems} == {"spec.training.globalBatchSize", "spec.integration"}


@pytest.mark.parametrize(("batch", "use"), [(100, "96 or 104"), (7, "8")])
def test_a_batch_that_cannot_be_divided_is_told_the_nearest_that_can(batch: int, use: str) -> None:
    found = problem(spec(training={"globalBatchSize": batch}, resources={"gpusPerNode": 8}))
    assert str(found) == f"spec.training.globalBatchSize: {batch} cannot be divided among 8 GPUs; use {use}"
