"""The downgrade ladder: its order, its consent, and its invariants for every plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtune.gpus.gpu import find
from memtune.memory.prediction import Interval, Prediction
from memtune.memory.workload import Evaluation, Workload
from memtune.model.architecture import Architecture, Kind
from memtune.planning.ladder import RUNGS, Downgrade, Exhausted, Failure, OutOfMemoryKind, descend
from memtune.planning.space import refusal
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
from memtune.plans.plan import DEFAULT_BUCKET_ELEMENTS, Plan
from memtune.units import GIB, MIB

TINY = Architecture(
    "tiny", Kind.DECODER, hidden_size=64, layers=2, heads=4, kv_heads=4, head_dim=16, ffn_size=256, vocab_size=1000
)
EIGHT = Workload(TINY, find("h100-80gb"), global_batch=64, sequence_length=128, gpus_per_node=8)
CONSENT = frozenset({"optimizer-8bit", "gradient-dtype", "precision"})
PLAN = Plan.parse("bf16-z1-none-mb4x2")
_KEPT = {"none": 1.0, "selective": 0.6, "every": 0.4, "full": 0.2}


class Sums:
    """A model whose numbers can be added up by hand: eight ranks, ten parameters' worth of GiB."""

    def predict(self, plan: Plan) -> Prediction:
        device_gib = self._states(plan) + self._activations(plan)
        device_gib += plan.bucket_elements / DEFAULT_BUCKET_ELEMENTS
        device_gib += 0 if plan.expandable_segments else 3
        device_gib += 0 if plan.fused_optimizer else 2
        size = Interval(device_gib * GIB, device_gib * GIB, device_gib * GIB)
        rate = Interval(1.0, 1.0, 1.0)
        return Prediction("forward", dict, tuple, size, size, size, size, size, size, rate, rate)

    def _states(self, plan: Plan) -> float:
        stage = plan.sharding.zero_stage
        weights = 0.0 if plan.offload is Offload.PARAMETERS else 10 / (8 if stage == 3 else 1)
        moments = {Optimizer.ADAMW: 20.0, Optimizer.ADAMW_8BIT: 5.0}.get(plan.optimizer, 10.0)
        states = 0.0 if plan.offload is not Offload.NONE else moments / (8 if stage else 1)
        wide = 2 if plan.precision in (Precision.FP32, Precision.TF32) else 1
        # Gradients live through the forward pass only if micro-batches accumulate.
        gradients = (10 if plan.gradient_dtype is GradientDtype.FP32 else 5) / (8 if stage >= 2 else 1)
        return wide * weights + states + (gradients if plan.accumulation > 1 else 0)

    def _activations(self, plan: Plan) -> float:
        return 2 * plan.micro_batch * _KEPT[plan.checkpointing.mode]


def device_bytes(plan: Plan) -> float:
    return Sums().predict(plan).device.expected


def fall(
    plan: Plan, kind: OutOfMemoryKind, deficit_gib: float, consent: frozenset[str] = CONSENT
) -> Downgrade | Exhausted:
    return descend(EIGHT, Sums(), plan, Failure(kind, deficit_gib * GIB), consent)


@pytest.mark.parametrize(
    ("deficit_gib", "kind", "plan", "rung"),
    [
        (2.5, OutOfMemoryKind.FRAGMENTATION, "bf16-z1-none-mb4x2-exp", "allocator"),
        (3.1, OutOfMemoryKind.ACTIVATION, "bf16-z1-sel-mb4x2", "checkpointing"),
        (5.0, OutOfMemoryKind.ACTIVATION, "bf16-z1-full-mb4x2", "checkpointing"),
        (4.0, OutOfMemoryKind.STATE, "bf16-z2-none-mb4x2", "sharding"),
        (10.0, OutOfMemoryKind.STATE, "bf16-z3-none-mb4x2", "sharding"),
    ],
)
def test_the_first_rung_that_is_enough_is_taken(
    deficit_gib: float, kind: OutOfMemoryKind, plan: str, rung: str
) -> None:
    below = fall(PLAN, kind, deficit_gib)
    assert isinstance(below, Downgrade)
    assert (str(below.plan), below.rungs) == (plan, (rung,))


def test_the_saving_is_the_difference_of_the_predictions() -> None:
    # none -> selective at micro-batch 4 saves 4 x 2 x 0.4 = 3.2 GiB.
    below = fall(PLAN, OutOfMemoryKind.ACTIVATION, 3.1)
    assert isinstance(below, Downgrade)
    assert below.saved_bytes == pytest.approx(3.2 * GIB)


def test_rungs_are_taken_together_where_no_single_one_is_enough() -> None:
    # ZeRO 3 alone saves 13.1 GiB, offload comes last. Together: expandable 3, buckets 0.9, full checkpointing 6.4,
    # micro-batch 1.2 of the 1.6 left, and the gradients that ZeRO 2 shards 5 x 7/8.
    below = fall(PLAN, OutOfMemoryKind.ACTIVATION, 14.0, frozenset())
    assert isinstance(below, Downgrade)
    assert str(below.plan) == "bf16-z2-full-mb1x8-bk50m-exp"
    assert below.rungs == ("allocator", "buckets", "checkpointing", "micro-batch", "sharding")
    assert below.saved_bytes == pytest.approx((3 + 0.9 + 6.4 + 1.2 + 4.375) * GIB)


def test_a_smaller_micro_batch_is_skipped_where_gradients_then_cost_more_than_it_saves() -> None:
    # From 2x1 to 1x2 saves 2 x 0.2 GiB of activations and adds 5 GiB of gradients.
    plan = Plan.parse("bf16-z1-full-mb2x1-bk50m-exp")
    micro_batch = next(rung for rung in RUNGS if rung.name == "micro-batch")
    (smaller,) = micro_batch.options(plan)
    assert device_bytes(smaller) > device_bytes(plan)
    below = fall(plan, OutOfMemoryKind.ACTIVATION, 0.1, frozenset())
    assert isinstance(below, Downgrade)
    assert below.plan.micro_batch == 2


def test_the_next_micro_batch_is_the_next_divisor_not_the_half() -> None:
    micro_batch = next(rung for rung in RUNGS if rung.name == "micro-batch")
    options = list(micro_batch.options(Plan.parse("bf16-z1-none-mb6x2")))
    assert [(plan.micro_batch, plan.accumulation) for plan in options] == [(4, 3), (3, 4), (2, 6), (1, 12)]


def test_rungs_that_change_numerics_wait_for_consent() -> None:
    bottom = Plan.parse("bf16-z3-full-mb1x8-bk50m-exp-g32")
    assert isinstance(fall(bottom, OutOfMemoryKind.STATE, 4.5, frozenset()), Exhausted)
    below = fall(Plan.parse("bf16-z0-full-mb1x8-bk50m-exp"), OutOfMemoryKind.STATE, 1.0, frozenset({"optimizer-8bit"}))
    assert isinstance(below, Downgrade)
    assert below.rungs == ("sharding",)


def test_precision_falls_back_to_a_supported_one() -> None:
    old = replace(EIGHT, gpu=find("v100-32gb"))
    bottom = Plan.parse("fp32-z3-full-mb1x8-sdpa-bk50m-exp-oopt")
    for workload, narrow in ((EIGHT, Precision.BF16), (old, Precision.FP16)):
        failure = Failure(OutOfMemoryKind.STATE, 1.0 * GIB)
        below = descend(
            workload, Sums(), bottom, failure, CONSENT, allowed=lambda plan: plan.offload is Offload.OPTIMIZER
        )
        assert isinstance(below, Downgrade)
        assert (below.rungs, below.plan.precision) == (("precision",), narrow)


def test_the_margin_counts_like_the_deficit() -> None:
    exact = descend(EIGHT, Sums(), PLAN, Failure(OutOfMemoryKind.ACTIVATION, 3.0 * GIB))
    careful = descend(EIGHT, Sums(), PLAN, Failure(OutOfMemoryKind.ACTIVATION, 3.0 * GIB), margin_bytes=0.1 * GIB)
    assert isinstance(exact, Downgrade)
    assert isinstance(careful, Downgrade)
    assert (exact.rungs, careful.rungs) == (("allocator",), ("checkpointing",))


def test_forbidden_rungs_are_not_taken() -> None:
    below = descend(
        EIGHT,
        Sums(),
        PLAN,
        Failure(OutOfMemoryKind.STATE, 4.0 * GIB),
        allowed=lambda plan: plan.sharding is not Sharding.ZERO_2,
    )
    assert isinstance(below, Downgrade)
    assert below.plan.sharding is Sharding.ZERO_3


def test_offloaded_parameters_take_the_stage_that_shards_them() -> None:
    # ZeRO 3 saves 8.75 GiB, offloaded moments 2.5 more, offloaded parameters all 10 of them.
    below = fall(Plan.parse("bf16-z2-full-mb1x8-bk50m-exp"), OutOfMemoryKind.STATE, 12.0, frozenset())
    assert isinstance(below, Downgrade)
    assert (below.plan.sharding, below.plan.offload) == (Sharding.ZERO_3, Offload.PARAMETERS)
    assert below.saved_bytes == pytest.approx(12.5 * GIB)


def test_evaluation_lowers_its_own_batch_and_saving_its_gathering() -> None:
    evaluating = replace(EIGHT, evaluation=Evaluation(batch_size=12))
    below = descend(evaluating, Sums(), PLAN, Failure(OutOfMemoryKind.EVALUATION, GIB))
    assert below == Downgrade(PLAN, ("evaluation-batch",), evaluation_batch=min(6, PLAN.micro_batch))
    smallest = replace(EIGHT, evaluation=Evaluation(batch_size=1))
    assert isinstance(descend(smallest, Sums(), PLAN, Failure(OutOfMemoryKind.EVALUATION, GIB)), Exhausted)
    sharded = replace(PLAN, sharding=Sharding.ZERO_3)
    saving = descend(EIGHT, Sums(), sharded, Failure(OutOfMemoryKind.SAVING, GIB))
    assert saving == Downgrade(sharded, ("sharded-save",), sharded_save=True)
    whole = replace(PLAN, sharding=Sharding.ZERO_2)
    assert isinstance(descend(EIGHT, Sums(), whole, Failure(OutOfMemoryKind.SAVING, GIB)), Exhausted), (
        "it gathers nothing"
    )


def test_an_exhausted_ladder_shows_the_deficit_of_its_smallest_plan() -> None:
    below = fall(PLAN, OutOfMemoryKind.ACTIVATION, 1000.0, frozenset())
    assert isinstance(below, Exhausted)
    saved = device_bytes(PLAN) - device_bytes(below.best)
    assert below.missing_bytes == pytest.approx(1000 * GIB - saved)
    assert below.best.global_batch(8) == PLAN.global_batch(8)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    micro_batch = draw(st.sampled_from([1, 2, 4, 8]))
    every = Checkpointing("every", draw(st.integers(2, 8)))
    return Plan(
        precision=draw(st.sampled_from(Precision)),
        sharding=draw(st.sampled_from(Sharding)),
        checkpointing=draw(st.sampled_from([NO_CHECKPOINTING, SELECTIVE, every, FULL])),
        micro_batch=micro_batch,
        accumulation=8 // micro_batch,
        fused_optimizer=draw(st.booleans()),
        gradient_dtype=draw(st.sampled_from(GradientDtype)),
        attention=Attention.SDPA,
        bucket_elements=draw(st.sampled_from([500_000_000, 150_000_000, 10_000_000])),
        expandable_segments=draw(st.booleans()),
    )


_TRAINING_KINDS = [k for k in OutOfMemoryKind if k not in (OutOfMemoryKind.EVALUATION, OutOfMemoryKind.SAVING)]


@settings(max_examples=30)
@given(plans(), st.sampled_from(_TRAINING_KINDS), st.floats(0, 40), st.sets(st.sampled_from(sorted(CONSENT))))
def test_every_rung_takes_less_memory_and_keeps_the_global_batch(
    plan: Plan, kind: OutOfMemoryKind, deficit_gib: float, consent: set[str]
) -> None:
    below = fall(plan, kind, deficit_gib, frozenset(consent))
    assert below == fall(plan, kind, deficit_gib, frozenset(consent))
    reached = below.plan if isinstance(below, Downgrade) else below.best
    assert reached.global_batch(8) == plan.global_batch(8)
    if isinstance(below, Downgrade):
        assert device_bytes(reached) < device_bytes(plan)
        assert device_bytes(plan) - device_bytes(reached) >= deficit_gib * GIB
        assert refusal(EIGHT, reached) is None
    unlike = {
        "optimizer-8bit": reached.optimizer != plan.optimizer,
        "gradient-dtype": reached.gradient_dtype != plan.gradient_dtype,
        "precision": reached.precision != plan.precision,
    }
    assert {name for name, changed in unlike.items() if changed} <= consent


@settings(max_examples=25)
@given(plans(), st.sampled_from(_TRAINING_KINDS))
def test_the_ladder_ends(plan: Plan, kind: OutOfMemoryKind) -> None:
    seen = [plan]
    while isinstance(below := fall(seen[-1], kind, 0.5), Downgrade):
        seen.append(below.plan)
        assert len(seen) < 50
    sizes = [device_bytes(step) for step in seen]
    assert sizes == sorted(sizes, reverse=True)


def test_no_rung_leads_to_an_offload_that_the_host_cannot_hold() -> None:
    tight = replace(EIGHT, host_limit_bytes=2 * MIB)
    # All rungs but offload save 17.0 GiB together, moments on the host another 2.5.
    failure = Failure(OutOfMemoryKind.STATE, 19 * GIB)
    roomy = descend(EIGHT, Sums(), PLAN, failure)
    assert isinstance(roomy, Downgrade)
    assert roomy.plan.offload is Offload.OPTIMIZER
    below = descend(tight, Sums(), PLAN, failure)
    assert isinstance(below, Exhausted)
    assert below.best.offload is Offload.NONE


def test_host_memory_that_held_an_offload_is_enough() -> None:
    plan = Plan.parse("bf16-z1-none-mb4x2-oopt")
    below = descend(
        replace(EIGHT, host_limit_bytes=2 * MIB), Sums(), plan, Failure(OutOfMemoryKind.ACTIVATION, 3.1 * GIB)
    )
    assert isinstance(below, Downgrade)
    assert below.plan == replace(plan, checkpointing=SELECTIVE)
