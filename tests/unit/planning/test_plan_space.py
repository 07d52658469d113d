"""Which plans a job allows, and their ranking, with a predictor small enough to check by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtune.gpus.gpu import find
from memtune.memory.prediction import Component, Interval, Prediction
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.planning.parameters import StudyParameters
from memtune.planning.space import MEMORY, Space, divisors, enumerate_plans, rank, refusal, refusals
from memtune.plans.knobs import FULL, SELECTIVE, Attention, GradientDtype, Offload, Optimizer, Precision, Sharding
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB

TINY = Architecture(
    "tiny", Kind.DECODER, hidden_size=64, layers=2, heads=4, kv_heads=4, head_dim=16, ffn_size=256, vocab_size=1000
)
EIGHT = Workload(TINY, find("h100-80gb"), global_batch=64, sequence_length=128, gpus_per_node=8)
ONE = replace(EIGHT, global_batch=4, gpus_per_node=1)


def prediction(device_gib: float, tokens_per_second: float, width: float = 1.0) -> Prediction:
    device = Interval(device_gib / width * GIB, device_gib * GIB, device_gib * width * GIB)
    rate = Interval(tokens_per_second, tokens_per_second, tokens_per_second)
    return Prediction("forward", dict, tuple, device, device, device, device, device, device, rate, rate)


class ByMicroBatch:
    """Ten GiB and ten tokens per second per sequence of the micro-batch."""

    def predict(self, plan: Plan) -> Prediction:
        return prediction(10 * plan.micro_batch, 10 * plan.micro_batch, width=1.05)


def test_micro_batches_are_divisors_of_the_batch_per_rank() -> None:
    plans = enumerate_plans(EIGHT, Space(shardings=(Sharding.ZERO_2,), checkpointings=(FULL,)))
    assert [(plan.micro_batch, plan.accumulation) for plan in plans] == [(1, 8), (2, 4), (4, 2), (8, 1)]


def test_a_script_with_micro_batches_of_its_own_is_given_no_other() -> None:
    space = Space(shardings=(Sharding.ZERO_2,), checkpointings=(FULL,), micro_batches=(3, 4))
    assert [str(plan) for plan in enumerate_plans(EIGHT, space)] == ["bf16-z2-full-mb4x2"]
    assert refusals(EIGHT, space) == ["micro-batch 3 does not divide the 8 sequences of a GPU and a step"]
    # Not even after an out-of-memory.
    assert space.has(Plan.parse("bf16-z2-full-mb4x2"))
    assert not space.has(Plan.parse("bf16-z2-full-mb2x4"))


def test_a_weight_that_is_larger_than_deepspeeds_buffers_is_not_kept_on_nvme() -> None:
    # An embedding of 256,000 x 2,048. On 4 GPUs, DeepSpeed would end with "More elements than buffer size".
    large, plan = replace(TINY, hidden_size=2048, vocab_size=256_000), Plan.parse("bf16-z3-full-mb1x8-onvme")
    assert refusal(replace(EIGHT, model=large), plan) is None
    reason = refusal(replace(EIGHT, model=large, gpus_per_node=4), plan)
    assert reason is not None
    assert "the largest weight has 524,288,000; that takes 6 GPUs" in reason


@given(st.integers(1, 5000))
def test_divisors_are_all_of_them_in_order(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_combinations_that_exclude_each_other_are_left_out() -> None:
    space = Space(shardings=(Sharding.DDP, Sharding.ZERO_1, Sharding.ZERO_3), offloads=tuple(Offload))
    found = {(plan.sharding, plan.offload) for plan in enumerate_plans(EIGHT, space)}
    assert (Sharding.DDP, Offload.OPTIMIZER) not in found
    assert (Sharding.ZERO_1, Offload.PARAMETERS) not in found
    assert {offload for sharding, offload in found if sharding is Sharding.ZERO_3} == set(Offload)
    assert {offload for sharding, offload in found if sharding is Sharding.DDP} == {Offload.NONE, Offload.ACTIVATIONS}


@pytest.mark.parametrize(
    ("gpu", "plan", "reason"),
    [
        ("t4-16gb", "bf16-z2-sel-mb1x8", "t4-16gb has no bf16; use fp16 or fp32"),
        ("a100-80gb", "fp8-z2-sel-mb1x8", "a100-80gb has no fp8; use bf16"),
        ("h100-80gb", "fp32-z2-sel-mb1x8", "flash attention has no fp32 kernel; use sdpa"),
        ("h100-80gb", "bf16-z0-sel-mb1x8-oopt", "offload optimizer needs ZeRO 1 or more, or FSDP"),
        ("h100-80gb", "bf16-z2-sel-mb1x8-oopt-adamw8bit", "the 8-bit optimizer has no CPU kernel"),
        ("h100-80gb", "bf16-z1-sel-mb1x8-muon", "muon works on whole matrices, ZeRO hands it flat pieces"),
        ("h100-80gb", "bf16-z3-sel-mb1x8-adafactor", "adafactor works on whole matrices"),
        ("h100-80gb", "bf16-fsdp-sel-mb1x8-adafactor", "FSDP hands it shards; use z0 or ddp"),
        ("h100-80gb", "bf16-z0-sel-mb1x8-g32", "DeepSpeed keeps no fp32 gradients of bf16 weights at stage 0"),
    ],
)
def test_choices_unsupported_by_hardware_or_library_are_refused_with_a_reason(gpu: str, plan: str, reason: str) -> None:
    assert reason in (refusal(replace(EIGHT, gpu=find(gpu)), Plan.parse(plan)) or "")


def test_plans_that_can_run_are_not_refused() -> None:
    assert refusal(EIGHT, Plan.parse("fp8-z3-sel-mb1x8")) is None
    assert refusal(EIGHT, Plan.parse("fp32-z3-sel-mb1x8-sdpa")) is None
    assert refusal(EIGHT, Plan.parse("bf16-z0-sel-mb1x8-muon")) is None
    assert refusal(EIGHT, Plan.parse("bf16-fsdp-sel-mb1x8-muon")) is None
    assert refusal(EIGHT, Plan.parse("bf16-z1-sel-mb1x8-g32")) is None
    assert refusal(EIGHT, Plan.parse("fp32-z0-sel-mb1x8-g32-sdpa")) is None


def test_a_space_holds_no_adafactor_in_shards() -> None:
    space = replace(Space(), optimizers=(Optimizer.ADAFACTOR,), shardings=tuple(Sharding))
    assert {plan.sharding for plan in enumerate_plans(EIGHT, space)} == {Sharding.ZERO_0, Sharding.DDP}
    assert "adafactor works on whole matrices, FSDP hands it shards; use z0 or ddp" in refusals(EIGHT, space)


def test_an_empty_space_says_why() -> None:
    old = replace(EIGHT, gpu=find("v100-32gb"))
    assert enumerate_plans(old, Space()) == []
    assert refusals(old, Space()) == ["v100-32gb has no bf16; use fp16 or fp32"]


def test_one_gpu_takes_the_plainest_sharding_and_for_each_offload_the_least_of_each_library() -> None:
    zeros = (Sharding.ZERO_0, Sharding.ZERO_1, Sharding.ZERO_2, Sharding.ZERO_3)
    space = Space(
        shardings=(Sharding.FSDP, Sharding.FSDP_SHARD_GRAD_OP, *zeros),
        checkpointings=(SELECTIVE,),
        offloads=(Offload.NONE, Offload.OPTIMIZER, Offload.PARAMETERS),
    )
    found = {(plan.sharding, plan.offload) for plan in enumerate_plans(ONE, space)}
    assert found == {
        (Sharding.ZERO_0, Offload.NONE),
        (Sharding.ZERO_1, Offload.OPTIMIZER),
        (Sharding.ZERO_3, Offload.PARAMETERS),
        (Sharding.FSDP_SHARD_GRAD_OP, Offload.PARAMETERS),
    }
    with_ddp = replace(space, shardings=(*space.shardings, Sharding.DDP), offloads=(Offload.NONE,))
    assert {plan.sharding for plan in enumerate_plans(ONE, with_ddp)} == {Sharding.DDP}


def test_choices_left_out_on_one_gpu_are_reported() -> None:
    space = Space(shardings=(Sharding.ZERO_0, Sharding.FSDP))
    assert [reason[:40] for reason in refusals(ONE, space)] == ["one GPU has no other to share states wit"]
    assert refusals(EIGHT, space) == refusals(ONE, replace(space, shardings=(Sharding.FSDP,))) == []


@settings(deadline=None)  # the duration depends on the machine
@given(
    st.sets(st.sampled_from(Sharding), min_size=1),
    st.sets(st.sampled_from(Precision), min_size=1),
    st.sets(st.sampled_from(Offload), min_size=1),
    st.sets(st.sampled_from(Optimizer), min_size=1),
    st.sampled_from([EIGHT, ONE]),
)
def test_every_plan_keeps_the_global_batch_and_comes_once(
    shardings: set[Sharding],
    precisions: set[Precision],
    offloads: set[Offload],
    optimizers: set[Optimizer],
    workload: Workload,
) -> None:
    space = Space(
        precisions=tuple(sorted(precisions)),
        shardings=tuple(sorted(shardings)),
        offloads=tuple(sorted(offloads)),
        optimizers=tuple(sorted(optimizers)),
        attentions=(Attention.SDPA,),
        checkpointings=(SELECTIVE,),
    )
    plans = enumerate_plans(workload, space)
    assert len(set(plans)) == len(plans)
    assert all(plan.global_batch(workload.world) == workload.global_batch for plan in plans)
    assert all(refusal(workload, plan) is None for plan in plans)


def test_the_fastest_fitting_plan_comes_first_and_others_show_their_need() -> None:
    plans = [Plan.parse(f"bf16-z2-sel-mb{size}x{64 // size}") for size in (1, 2, 4, 8, 16)]
    ranking = rank(replace(EIGHT, global_batch=512), ByMicroBatch(), plans, headroom=0.06)
    assert [candidate.plan.micro_batch for candidate in ranking.fitting] == [4, 2, 1]
    assert [(drop.plan.micro_batch, drop.reason) for drop in ranking.uncertain] == [
        (
            8,
            "needs 76.2 GiB to 84.0 GiB, the GPU has 79.1 GiB, and it fits with a probability of 1%: "
            "only a probe can tell",
        )
    ]
    assert [(drop.plan.micro_batch, drop.reason) for drop in ranking.dropped] == [
        (16, "needs 160.0 GiB, the GPU has 79.1 GiB")
    ]


def test_headroom_alone_can_make_a_plan_uncertain() -> None:
    class Exact:
        def predict(self, plan: Plan) -> Prediction:
            return prediction(76, plan.micro_batch)

    ranking = rank(EIGHT, Exact(), [Plan.parse("bf16-z2-sel-mb8x1")], headroom=0.06)
    reason = ranking.uncertain[0].reason
    assert (
        reason == "needs 76.0 GiB, of the GPU's 79.1 GiB 6% must stay free, "
        "and it fits with a probability of 0%: only a probe can tell"
    )


def test_the_objective_memory_puts_the_smallest_first() -> None:
    plans = [Plan.parse(f"bf16-z2-sel-mb{size}x{8 // size}") for size in (4, 1, 2)]
    ranking = rank(EIGHT, ByMicroBatch(), plans, headroom=0.06, objective=MEMORY)
    assert [candidate.plan.micro_batch for candidate in ranking.fitting] == [1, 2, 4]


class KeepingActivations(ByMicroBatch):
    """3 MiB of activations per sequence of the micro-batch."""

    def predict(self, plan: Plan) -> Prediction:
        size = 3.0 * MIB * plan.micro_batch
        parts = (Component("weights", Interval(1.0, 1.0, 1.0)), Component("activations", Interval(0.0, size, 2 * size)))
        return replace(super().predict(plan), breakdown=lambda: parts)


def test_plans_that_offload_more_than_a_pod_holds_are_dropped_with_a_reason() -> None:
    plans = [Plan.parse(f"bf16-z2-sel-mb{size}x{8 // size}{offload}") for offload in ("", "-oopt") for size in (1, 2)]
    roomy, tight = (replace(EIGHT, host_limit_bytes=size * MIB) for size in (64, 2))
    assert rank(roomy, ByMicroBatch(), plans, headroom=0.06).dropped == ()
    ranking = rank(tight, ByMicroBatch(), plans, headroom=0.06)
    assert [candidate.plan.offload for candidate in ranking.fitting] == [Offload.NONE] * 2
    # Each of 8 ranks holds 32,424 of 259,392 parameters: 2 x 128 KiB and 64 KiB are pinned, and moments take 8 B each.
    assert [drop.reason for drop in ranking.dropped] == [
        "needs 4 MiB of host memory for what it offloads; limits.memory of the template is 2 MiB"
    ] * 2
    assert rank(replace(tight, assumed=True), ByMicroBatch(), plans, headroom=0.06).dropped == ()


def test_offloaded_activations_are_those_of_the_micro_batch_pinned_on_each_rank() -> None:
    plans = [Plan.parse(f"bf16-z2-sel-mb{size}x{8 // size}-oact") for size in (1, 2, 4)]
    ranking = rank(replace(EIGHT, host_limit_bytes=64 * MIB), KeepingActivations(), plans, headroom=0.06)
    # Pinned are 4, 8 and 16 MiB a rank.
    assert [candidate.plan.micro_batch for candidate in ranking.fitting] == [2, 1]
    assert [drop.reason for drop in ranking.dropped] == [
        "needs 128 MiB of host memory for what it offloads; limits.memory of the template is 64 MiB"
    ]


@pytest.mark.parametrize(
    ("space", "named", "whole"),
    [
        (Space(attentions=(Attention.SDPA,)), "bf16-z3-full-mb1x8", "bf16-z3-full-mb1x8-sdpa"),
        (Space(attentions=(Attention.SDPA,)), "bf16-z3-full-mb1x8-eager", "bf16-z3-full-mb1x8-eager"),
        (Space(attentions=(Attention.SDPA, Attention.EAGER)), "bf16-z3-full-mb1x8", "bf16-z3-full-mb1x8"),
        (Space(optimizers=(Optimizer.LION,)), "bf16-z3-full-mb1x8", "bf16-z3-full-mb1x8-lion"),
        (Space(gradient_dtypes=(GradientDtype.FP32,)), "bf16-z3-full-mb1x8", "bf16-z3-full-mb1x8-g32"),
        (Space(offloads=(Offload.OPTIMIZER,)), "bf16-z3-full-mb1x8", "bf16-z3-full-mb1x8-oopt"),
        (Space(offloads=(Offload.OPTIMIZER,)), "bf16-z3-full-mb1x8-oparam", "bf16-z3-full-mb1x8-oparam"),
        # A plan that cannot offload is taken as written.
        (Space(offloads=(Offload.OPTIMIZER,)), "bf16-ddp-full-mb1x8", "bf16-ddp-full-mb1x8"),
        (Space(offloads=(Offload.OPTIMIZER,)), "bf16-z0-full-mb1x8", "bf16-z0-full-mb1x8"),
    ],
)
def test_parts_missing_from_a_plan_name_take_the_jobs_only_choice(space: Space, named: str, whole: str) -> None:
    assert str(space.completed(Plan.parse(named))) == whole


def test_a_space_with_both_ways_of_the_allocator_has_each_plan_twice() -> None:
    one = Space(shardings=(Sharding.ZERO_2,), checkpointings=(FULL,))
    both = replace(one, expandable_segments=(False, True))
    plans = enumerate_plans(EIGHT, both)
    assert len(plans) == 2 * len(enumerate_plans(EIGHT, one))
    predictor = Predictor(EIGHT)
    for plan in enumerate_plans(EIGHT, one):
        twin = replace(plan, expandable_segments=True)
        assert twin in plans
        assert predictor.predict(twin).reserved.expected < predictor.predict(plan).reserved.expected
    parameters = StudyParameters(tuple(plans))
    assert parameters.choices["expandable_segments"] == (False, True)
    assert [parameters.plan_of(parameters.values_of(plan)) for plan in plans] == plans
    always = replace(one, expandable_segments=(True,))
    assert always.completed(Plan.parse("bf16-z2-full-mb4x8")) == Plan.parse("bf16-z2-full-mb4x8-exp")


def test_jobs_of_varying_lengths_prefer_expandable_segments() -> None:
    # Logits of which the default allocator keeps several times more than the GPU has, once lengths vary.
    workload = replace(ONE, model=replace(TINY, vocab_size=152_064), sequence_length=8192)
    twins = [Plan.parse(f"bf16-ddp-full-mb2x2{ending}") for ending in ("", "-exp")]
    for varies, flushing in ((False, []), (True, twins[:1])):
        predictor = Predictor(replace(workload, varying_lengths=varies))
        usable = workload.gpu.usable_bytes
        assert [plan for plan in twins if predictor.predict(plan).flushes(usable)] == flushing
        ranking = rank(workload, predictor, twins, headroom=0.06)
        assert [*(each.plan for each in ranking.fitting), *(each.plan for each in ranking.uncertain)][0] == twins[1]


def test_a_space_with_other_attentions_optimizers_and_losses_has_a_plan_for_each() -> None:
    one = Space(shardings=(Sharding.DDP,), checkpointings=(FULL,))
    opened = replace(
        one,
        attentions=(Attention.FLASH, Attention.EAGER),
        optimizers=(Optimizer.ADAMW, Optimizer.SGD, Optimizer.LION),
        fused_losses=(False, True),
    )
    plans = enumerate_plans(EIGHT, opened)
    assert len(plans) == 12 * len(enumerate_plans(EIGHT, one))
    parameters = StudyParameters(tuple(plans))
    assert {name: parameters.choices[name] for name in ("attention", "optimizer", "fused_loss")} == {
        "attention": ("eager", "flash"),
        "optimizer": ("adamw", "lion", "sgd"),
        "fused_loss": (False, True),
    }
    assert [parameters.plan_of(parameters.values_of(plan)) for plan in plans] == plans
    assert [Plan.parse(str(plan)) for plan in plans] == plans
    assert all(opened.allows(plan) for plan in plans)
    assert sum(one.allows(plan) for plan in plans) == len(enumerate_plans(EIGHT, one))


def test_sdpa_stands_beside_flash_only_where_flash_has_no_kernel() -> None:
    every = Space(
        precisions=(Precision.BF16, Precision.FP32),
        shardings=(Sharding.DDP,),
        checkpointings=(FULL,),
        attentions=tuple(Attention),
        micro_batches=(1,),
    )
    found = [(plan.precision.value, plan.attention.value) for plan in enumerate_plans(EIGHT, every)]
    assert found == [("bf16", "flash"), ("bf16", "eager"), ("fp32", "sdpa"), ("fp32", "eager")]
    alone = replace(every, attentions=(Attention.SDPA,), precisions=(Precision.BF16,))
    assert [plan.attention for plan in enumerate_plans(EIGHT, alone)] == [Attention.SDPA]
