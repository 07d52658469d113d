"""Messages about knobs that a job does not allow."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.api import Job, load_job
from memtune.api.allowed_plans import outside
from memtune.api.workload import to_space
from memtune.plans.plan import Plan

FACTS = {"hiddenSize": 64, "layers": 2, "heads": 4, "ffnSize": 128, "vocabSize": 1000}


def job(space: dict[str, Any] | None = None, consent: tuple[str, ...] = (), **training: Any) -> Job:
    spec = {
        "model": {"architecture": FACTS},
        "training": {"globalBatchSize": 64, "sequenceLength": 128, **training},
        "resources": {"gpusPerNode": 8},
        "tuning": {"space": space or {}},
        "retry": {"consent": list(consent)},
    }
    kind = {"apiVersion": "memtune.dev/v1alpha1", "kind": "MemoryTunedJob"}
    return load_job({**kind, "metadata": {"name": "a"}, "spec": spec})


@pytest.mark.parametrize(
    ("space", "plan", "told"),
    [
        ({"zeroStages": [2, 3]}, "bf16-z1-full-mb1x8",
         "sharding z1 (ZeRO stage 1) is not among tuning.space.zeroStages [2, 3]"),
        ({"backends": ["deepspeed"]}, "bf16-ddp-full-mb1x8",
         "sharding ddp (backend ddp) is not among tuning.space.backends [deepspeed]"),
        ({}, "bf16-fsdphyb-full-mb1x8",
         "sharding fsdphyb (strategy hybrid) is not among tuning.space.fsdpStrategies [full, shard-grad-op]"),
        ({}, "fp16-z3-full-mb1x8", "precision fp16 is not among tuning.space.precision [bf16]"),
        ({}, "bf16-z3-every2-mb1x8",
         "checkpointing every-2 is not among tuning.space.checkpointing [none, selective, full]"),
        ({}, "bf16-z3-full-mb1x8-oopt", "offload optimizer is not among tuning.space.offload [none]"),
        ({}, "bf16-z3-full-mb1x8-sdpa", "attention sdpa is not among training.attention [flash]"),
        ({}, "bf16-z3-full-mb1x8-lion", "optimizer lion is not among training.optimizer [adamw]"),
        ({}, "bf16-z3-full-mb1x8-adamw8bit", "optimizer adamw-8bit is not among training.optimizer [adamw], "
         "and retry.consent has no optimizer-8bit"),
        ({"microBatch": [2, 8]}, "bf16-z3-full-mb1x8", "micro-batch 1 is not among tuning.space.microBatch [2, 8]"),
        (
            {"expandableSegments": [True]},
            "bf16-z3-full-mb1x8",
            "expandableSegments false is not among tuning.space.expandableSegments [true]",
        ),
        ({}, "bf16-z3-full-mb1x8-fl", "fusedLoss true is not among tuning.space.fusedLoss [false]"),
        ({"attention": ["flash", "eager"]}, "bf16-z3-full-mb1x8-sdpa",
         "attention sdpa is not among tuning.space.attention [flash, eager]"),
        ({"optimizer": ["adamw", "sgd"]}, "bf16-z3-full-mb1x8-lion",
         "optimizer lion is not among tuning.space.optimizer [adamw, sgd]"),
        ({}, "bf16-z3-full-mb1x8-split64", "maxSplitSizeMib 64 is for tuning.mode Fixed alone"),
    ],
)  # fmt: skip
def test_a_knob_that_the_job_does_not_allow_is_named(space: dict[str, Any], plan: str, told: str) -> None:
    assert outside(job(space), Plan.parse(plan)) == [told]


def test_rungs_of_the_ladder_are_allowed() -> None:
    assert outside(job(), Plan.parse("bf16-z3-full-mb1x8-bk50m-exp")) == []
    assert outside(job(consent=("optimizer-8bit",)), Plan.parse("bf16-z3-full-mb1x8-adamw8bit")) == []
    lowered = Plan.parse("bf16-z3-full-mb1x8-sdpa")
    expected = ["precision bf16 is not among tuning.space.precision [fp32], and retry.consent has no precision"]
    assert outside(job({"precision": ["fp32"]}, attention="sdpa"), lowered) == expected
    assert outside(job({"precision": ["fp32"]}, ("precision",), attention="sdpa"), lowered) == []


def test_every_plan_of_the_space_is_allowed() -> None:
    wide = job(
        {
            "backends": ["ddp", "deepspeed", "fsdp"],
            "offload": ["none", "optimizer"],
            "checkpointing": ["every-2"],
            "attention": ["flash", "sdpa", "eager"],
            "optimizer": ["adamw", "muon", "sgd"],
            "fusedLoss": [False, True],
        }
    )
    plans = list(to_space(wide).bare_plans())
    assert len(plans) > 10
    assert [reason for plan in plans for reason in outside(wide, plan)] == []
