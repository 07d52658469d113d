"""What measured step times teach of those of other plans."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtune.gpus.gpu import find
from memtune.memory.formulas.shape import shape_of
from memtune.memory.speed import TRUST, UNMEASURED, pace_of
from memtune.memory.speed_errors import SpeedErrors, Timed
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.plans.knobs import FULL, NO_CHECKPOINTING, Attention, Optimizer, Sharding
from memtune.plans.plan import Plan

COMPUTE = {"compute": 1.0, "launch": 0.0, "links": 0.0, "transfer": 0.0, "reduce": 0.0, "step": 0.0}
PLAIN = Plan.parse("bf16-z1-none-mb2x8")
CHECKPOINTED, SHARDED = replace(PLAIN, checkpointing=FULL), replace(PLAIN, sharding=Sharding.FSDP)
BOTH = replace(SHARDED, checkpointing=FULL)
SMALLER = PLAIN.with_micro_batch(1)


def timed(plan: Plan, factor: float) -> Timed:
    return Timed(plan, COMPUTE, factor)


@given(st.floats(0.2, 5.0))
def test_the_first_measurement_scales_all_plans(factor: float) -> None:
    errors = SpeedErrors([timed(PLAIN, factor)])
    for plan in (PLAIN, SMALLER, CHECKPOINTED, BOTH):
        assert errors.factor(plan, COMPUTE).expected == pytest.approx(factor, rel=1e-2)


def test_counted_operations_say_more_than_formulas_and_less_than_a_clock() -> None:
    counts, clock = (SpeedErrors([Timed(PLAIN, COMPUTE, 1.3, counted=each)]) for each in (True, False))
    by_counts, by_clock = counts.factor(PLAIN, COMPUTE), clock.factor(PLAIN, COMPUTE)
    assert by_counts.expected == pytest.approx(by_clock.expected, rel=1e-2)
    assert 3 * (by_clock.width - 1) < by_counts.width - 1 < 0.7 * (UNMEASURED.width - 1)
    more = SpeedErrors([Timed(plan, COMPUTE, 1.3, counted=True) for plan in (PLAIN, CHECKPOINTED, SMALLER)])
    assert more.factor(PLAIN, COMPUTE).width > 0.9 * by_counts.width  # all may be off alike


def test_the_more_a_plan_shares_with_a_measured_one_the_better_it_is_known() -> None:
    errors = SpeedErrors([timed(PLAIN, 1.0)])
    widths = [errors.factor(plan, COMPUTE).width for plan in (PLAIN, SMALLER, CHECKPOINTED, BOTH)]
    assert widths == sorted(widths)
    assert len(set(widths)) == len(widths)


def test_a_slow_checkpointing_is_slow_under_every_sharding() -> None:
    errors = SpeedErrors([timed(PLAIN, 1.0), timed(CHECKPOINTED, 1.2)])
    slow, quick = (errors.factor(plan, COMPUTE).expected for plan in (BOTH, SHARDED))
    assert slow / quick > 1.1
    assert SHARDED.checkpointing == NO_CHECKPOINTING


@pytest.mark.parametrize(
    "slow",
    [
        replace(PLAIN, fused_loss=True),
        replace(PLAIN, attention=Attention.EAGER),
        replace(PLAIN, expandable_segments=True),
        replace(PLAIN, optimizer=Optimizer.ADAFACTOR),
    ],
)
def test_a_slow_probe_of_an_opened_knob_leaves_the_plans_with_its_other_choice(slow: Plan) -> None:
    parts = {**COMPUTE, "compute": 0.6, "step": 0.4}
    errors = SpeedErrors([Timed(PLAIN, parts, 1.0), Timed(slow, parts, 1.25)])
    alike = replace(slow, sharding=SHARDED.sharding)
    assert errors.factor(SHARDED, parts).expected == pytest.approx(1.0, abs=0.04)
    assert errors.factor(alike, parts).expected > errors.factor(SHARDED, parts).expected * 1.04


def test_a_slow_optimizer_adds_the_time_of_its_step() -> None:
    def stepping(share: float) -> dict[str, float]:
        return {**COMPUTE, "compute": 1 - share, "step": share}

    muon, elsewhere = replace(PLAIN, optimizer=Optimizer.MUON), replace(BOTH, optimizer=Optimizer.MUON)
    errors = SpeedErrors([Timed(PLAIN, stepping(0.4), 1.0), Timed(muon, stepping(0.4), 1.4)])
    little, much = (
        errors.factor(elsewhere, stepping(share)).expected / errors.factor(BOTH, stepping(share)).expected
        for share in (0.02, 0.4)
    )
    assert little < 1.03
    assert much > 1.25


def test_a_slow_optimizer_is_not_taken_for_a_slow_reduction_nor_moves_plans_of_another() -> None:
    """On eight GPUs where the reduction at the end of the step takes six times as long as the optimizer."""
    model = Architecture("llama-3-8b", Kind.DECODER, 4096, 32, 32, 8, 128, 14336, 128256)
    workload = Workload(model, find("l4-24gb"), 8, 1024, nodes=1, gpus_per_node=8)
    shape, slow = shape_of(model, None), Optimizer.ADAFACTOR

    def parts(plan: Plan) -> dict[str, float]:
        return pace_of(workload, shape, plan).parts(1, 1)

    def truth(plan: Plan) -> float:
        found = parts(plan)
        return sum(found.values()) + (9 * found["step"] if plan.optimizer is slow else 0.0)

    z2, z3 = Plan.parse("bf16-z2-full-mb1x1"), Plan.parse("bf16-z3-full-mb1x1")
    assert parts(z2)["reduce"] > 5 * parts(z2)["step"]
    usual = [Timed(plan, parts(plan), truth(plan)) for plan in (z3, z2)]
    before = SpeedErrors(usual)
    probed = replace(z2, optimizer=slow)
    after = SpeedErrors([*usual, Timed(probed, parts(probed), truth(probed))])
    sgd = replace(z2, optimizer=Optimizer.SGD)
    low, _, high = before.factor(sgd, parts(sgd))
    assert low < after.factor(sgd, parts(sgd)).expected < high
    for plan in (sgd, replace(z3, optimizer=slow)):
        low, _, high = after.factor(plan, parts(plan))
        assert low < truth(plan) / sum(parts(plan).values()) < high


def test_a_slow_link_slows_plans_by_the_bytes_they_send() -> None:
    def sending(share: float) -> dict[str, float]:
        return {**COMPUTE, "compute": 1 - share, "links": share}

    errors = SpeedErrors([Timed(PLAIN, sending(0.0), 1.0), Timed(SMALLER, sending(0.5), 1.5)])
    little, much = (errors.factor(SHARDED, sending(share)).expected for share in (0.1, 0.7))
    assert 1.0 < little < 1.15
    assert much > 1.3


def test_contradicting_measurements_widen_the_speed_of_other_plans() -> None:
    plans = [PLAIN.with_micro_batch(size) for size in (1, 2, 4, 8)]
    alike = SpeedErrors([timed(plan, 1.0) for plan in plans])
    apart = SpeedErrors([timed(plan, factor) for plan, factor in zip(plans, (1.0, 1.3, 0.8, 1.2), strict=True)])
    assert apart.factor(SHARDED, COMPUTE).width > alike.factor(SHARDED, COMPUTE).width


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8), st.floats(0.0, 0.5))
def test_an_interval_is_never_wider_than_before_measurements(factors: list[float], links: float) -> None:
    parts = {**COMPUTE, "compute": 1 - links, "links": links}
    plans = [PLAIN.with_batch(number + 1, 1) for number in range(len(factors))]
    errors = SpeedErrors([Timed(plan, parts, factor) for plan, factor in zip(plans, factors, strict=True)])
    for plan in (*plans, BOTH):
        low, expected, high = errors.factor(plan, parts)
        assert 0 < low <= expected <= high < math.inf
        assert high / expected <= 1 + TRUST + 1e-9
