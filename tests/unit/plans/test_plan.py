"""The plan: round trips of its short form and JSON, its order, and its errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtune.plans.knobs import (
    FULL,
    NO_CHECKPOINTING,
    SELECTIVE,
    Attention,
    Checkpointing,
    GradientDtype,
    Offload,
    Optimizer,
    Precision,
    Sharding,
)
from memtune.plans.plan import Plan

PLAIN = Plan(Precision.BF16, Sharding.ZERO_2, SELECTIVE, micro_batch=4, accumulation=8)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sharding = draw(st.sampled_from(Sharding))
    offloads = [Offload.NONE, Offload.ACTIVATIONS]
    if sharding.backend == "deepspeed":
        offloads.append(Offload.OPTIMIZER)
    if sharding.zero_stage == 3:
        offloads.append(Offload.PARAMETERS)
    checkpointings = [NO_CHECKPOINTING, SELECTIVE, FULL, Checkpointing("every", draw(st.integers(2, 99)))]
    return Plan(
        precision=draw(st.sampled_from(Precision)),
        sharding=sharding,
        checkpointing=draw(st.sampled_from(checkpointings)),
        micro_batch=draw(st.integers(1, 512)),
        accumulation=draw(st.integers(1, 512)),
        offload=draw(st.sampled_from(offloads)),
        optimizer=draw(st.sampled_from(Optimizer)),
        fused_optimizer=draw(st.booleans()),
        gradient_dtype=draw(st.sampled_from(GradientDtype)),
        attention=draw(st.sampled_from(Attention)),
        fused_loss=draw(st.booleans()),
        bucket_elements=draw(st.integers(1, 10**9)),
        expandable_segments=draw(st.booleans()),
        max_split_size_mib=draw(st.sampled_from([0, 64, 512])),
    )


@given(plans())
def test_short_form_and_json_read_back_to_the_same_plan(plan: Plan) -> None:
    assert Plan.parse(str(plan)) == plan
    assert Plan.from_json(plan.to_json()) == plan


@given(plans(), plans())
def test_different_plans_have_different_short_forms(one: Plan, other: Plan) -> None:
    assert (str(one) == str(other)) == (one == other)
    assert (one < other) + (other < one) + (one == other) == 1


def test_the_short_form_is_stable() -> None:
    assert str(PLAIN) == "bf16-z2-sel-mb4x8"
    busy = replace(
        PLAIN,
        sharding=Sharding.FSDP,
        offload=Offload.PARAMETERS,
        optimizer=Optimizer.ADAMW_8BIT,
        gradient_dtype=GradientDtype.FP32,
        bucket_elements=100_000_000,
        expandable_segments=True,
    )
    assert str(busy) == "bf16-fsdp-sel-mb4x8-oparam-adamw8bit-g32-bk100m-exp"


def test_the_json_names_are_stable() -> None:
    assert PLAIN.to_json() == {
        "precision": "bf16",
        "sharding": "z2",
        "checkpointing": "selective",
        "microBatch": 4,
        "accumulation": 8,
        "offload": "none",
        "optimizer": "adamw",
        "fusedOptimizer": True,
        "gradientDtype": "model",
        "attention": "flash",
        "fusedLoss": False,
        "bucketElements": 500_000_000,
        "expandableSegments": False,
        "maxSplitSizeMib": 0,
    }


def test_checkpointing_modes_are_ordered_by_savings() -> None:
    every = [Checkpointing("every", k) for k in (8, 2)]
    assert sorted([FULL, *every, SELECTIVE, NO_CHECKPOINTING]) == [NO_CHECKPOINTING, SELECTIVE, *every, FULL]


def test_another_micro_batch_keeps_the_global_batch() -> None:
    smaller = PLAIN.with_micro_batch(2)
    assert (smaller.micro_batch, smaller.accumulation) == (2, 16)
    assert smaller.global_batch(8) == PLAIN.global_batch(8) == 256
    with pytest.raises(ValueError, match="micro-batch 5 does not divide the 32 sequences"):
        PLAIN.with_micro_batch(5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf16-z2-sel", "fewer than four parts"),
        ("bf17-z2-sel-mb4x8", "'bf17' is not one of fp8, bf16"),
        ("bf16-z4-sel-mb4x8", "'z4' is not one of ddp, z0"),
        ("bf16-z2-some-mb4x8", "'some' is not one of none, sel, full, everyK"),
        ("bf16-z2-sel-4x8", "'4x8' is not a micro-batch"),
        ("bf16-z2-sel-mb4x8-turbo", "'turbo' is no option"),
        ("bf16-z2-sel-mb4x8-eager-sdpa", "'sdpa' sets attention a second time"),
        ("bf16-z2-sel-mb0x8", "micro_batch is 0"),
        ("bf16-ddp-sel-mb1x1-oopt", "DDP cannot offload"),
        ("bf16-fsdp-sel-mb1x1-oopt", "use oparam"),
        ("bf16-z2-sel-mb1x1-oparam", "needs sharded parameters"),
        ("bf16-fsdp-sel-mb1x1-onvme", "only DeepSpeed offloads to NVMe"),
        ("bf16-z2-every1-mb1x1", "K of at least 2"),
        ("bf16-z2-sel-mb4x8-split20", "above 20"),
        ("bf16-z2-sel-mb4x999999999", "is not a micro-batch"),
        ("bf16-z2-sel-mb4x8-bk" + 400 * "9", "is no option"),
        ("bf16-z2-sel-mb\u0664x8", "is not a micro-batch"),
    ],
)
def test_a_bad_short_form_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan.parse(text)


def test_json_with_an_unknown_or_a_missing_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown fields \['colour'\]"):
        Plan.from_json({**PLAIN.to_json(), "colour": "red"})
    with pytest.raises(ValueError, match=r"missing fields \['precision'"):
        Plan.from_json({"microBatch": 4})
