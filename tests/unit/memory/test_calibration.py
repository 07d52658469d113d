"""Measurements correct the model by component, tighten its intervals, and never worsen a measured plan."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from predictors import of_components

from memtune.gpus.gpu import find
from memtune.memory.calibration import Measurement, calibrate
from memtune.memory.constants import JOB_WIDTH
from memtune.memory.predictor import Predictor
from memtune.memory.speed import TRUST
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.plans.plan import Plan

LLAMA_1B = Architecture("llama-1b", Kind.DECODER, 2048, 16, 32, 8, 64, 8192, 128256, tied_embeddings=True)
WORKLOAD = Workload(LLAMA_1B, find("h100-80gb"), 64, 2048, gpus_per_node=8)
PLANS = [Plan.parse(f"bf16-z2-{mode}-mb{m}x{8 // m}") for mode in ("none", "full") for m in (1, 2, 4)]


def _measured(plan: Plan, factor: float, offset: float = 0.0) -> Measurement:
    expected = Predictor(WORKLOAD).predict(plan).allocated.expected
    return Measurement(plan, allocated_bytes=int(expected * factor + offset))


def test_two_probes_tighten_every_interval_and_move_towards_the_truth() -> None:
    probes = [_measured(PLANS[0], 1.1), _measured(PLANS[1], 1.1)]
    before, after = Predictor(WORKLOAD), Predictor(WORKLOAD, calibrate(WORKLOAD, probes))
    for plan in PLANS:
        plain, learned = before.predict(plan), after.predict(plan)
        assert learned.allocated.width < plain.allocated.width
        assert learned.reserved.width < plain.reserved.width
        truth = plain.allocated.expected * 1.1
        assert abs(learned.allocated.expected - truth) < abs(plain.allocated.expected - truth)
    assert after.predict(PLANS[0]).allocated.width < 1.1


def test_two_probes_that_contradict_each_other_widen_every_interval() -> None:
    probes = [_measured(PLANS[0], 0.8), _measured(PLANS[1], 1.25)]
    before, after = of_components(WORKLOAD), Predictor(WORKLOAD, calibrate(WORKLOAD, probes))
    for plan in PLANS:
        assert after.predict(plan).allocated.width > before.predict(plan).allocated.width


def test_an_unmeasured_job_may_take_more_as_a_whole_but_not_less() -> None:
    plain, unmeasured = of_components(WORKLOAD).predict(PLANS[0]), Predictor(WORKLOAD).predict(PLANS[0])
    share = JOB_WIDTH * plain.reserved.expected
    for metric in ("reserved", "device"):
        before, after = getattr(plain, metric), getattr(unmeasured, metric)
        assert after.upper - after.expected == pytest.approx(math.hypot(before.upper - before.expected, share))
        assert after.lower == pytest.approx(before.lower)
    assert unmeasured.job_width_bytes == pytest.approx(share)


def test_a_slope_is_learned_apart_from_an_intercept() -> None:
    # Activations really cost half as much again: the first two micro-batches must predict the third.
    def truth(plan: Plan) -> int:
        activations = sum(t.bytes for t in Predictor(WORKLOAD).explain(plan) if t.name == "activations")
        return int(Predictor(WORKLOAD).predict(plan).allocated.expected + 0.15 * activations)

    probes = [Measurement(plan, allocated_bytes=truth(plan)) for plan in PLANS[:2]]
    predicted = Predictor(WORKLOAD, calibrate(WORKLOAD, probes)).predict(PLANS[2]).allocated
    assert predicted.expected == pytest.approx(truth(PLANS[2]), rel=0.02)
    assert predicted.lower < truth(PLANS[2]) < predicted.upper


def test_a_virtual_gpu_has_nothing_outside_its_allocator_and_learns_nothing_of_it() -> None:
    rehearsal, plan = replace(WORKLOAD, virtual=True), PLANS[0]
    plain = Predictor(rehearsal).predict(plan)
    assert plain.device == plain.reserved
    assert {part.name for part in plain.components}.isdisjoint({"context", "nccl", "workspace"})
    measured = int(plain.reserved.expected * 1.1)
    probe = Measurement(plan, reserved_bytes=measured, device_bytes=measured)
    learned = Predictor(rehearsal, calibrate(rehearsal, [probe])).predict(plan)
    # Some of it may be how this plan's tensors alone were packed.
    taught = learned.device.expected - plain.device.expected
    assert 0.5 < taught / (measured - plain.device.expected) < 1.0


def test_driver_overhead_is_learned_from_device_and_reserved() -> None:
    plan = PLANS[0]
    plain = Predictor(WORKLOAD).predict(plan)
    extra = int(plain.device.expected - plain.reserved.expected + 1e9)
    reserved = int(plain.reserved.expected)
    probe = Measurement(plan, reserved_bytes=reserved, device_bytes=reserved + extra)
    learned = Predictor(WORKLOAD, calibrate(WORKLOAD, [probe])).predict(plan)
    assert learned.device.expected - learned.reserved.expected == pytest.approx(extra, rel=0.1)


@given(st.lists(st.tuples(st.sampled_from(PLANS), st.floats(0.6, 1.7)), min_size=1, max_size=4))
def test_no_measured_plan_gets_worse(drawn: list[tuple[Plan, float]]) -> None:
    measurements = [_measured(plan, factor) for plan, factor in drawn]
    before, after = Predictor(WORKLOAD), Predictor(WORKLOAD, calibrate(WORKLOAD, measurements))
    for measurement in measurements:
        plain = abs(before.predict(measurement.plan).allocated.expected - measurement.allocated_bytes)
        learned = abs(after.predict(measurement.plan).allocated.expected - measurement.allocated_bytes)
        assert learned <= plain


def test_a_peak_predicted_by_luck_does_not_undo_other_corrections() -> None:
    # Any correction makes the first plan less exact; the intervals tighten nevertheless.
    probes = [_measured(PLANS[0], 1.0), _measured(PLANS[1], 1.03), _measured(PLANS[4], 1.03)]
    before, after = of_components(WORKLOAD), Predictor(WORKLOAD, calibrate(WORKLOAD, probes))
    for plan in PLANS:
        assert after.predict(plan).device.width < before.predict(plan).device.width
    assert after.predict(PLANS[0]).allocated.expected == pytest.approx(probes[0].allocated_bytes, rel=1e-6)


@given(
    st.lists(st.tuples(st.sampled_from(PLANS), st.floats(0.85, 1.2)), min_size=2, max_size=4, unique_by=lambda d: d[0])
)
def test_unlearned_components_stay_in_the_interval(drawn: list[tuple[Plan, float]]) -> None:
    measurements = [_measured(plan, factor) for plan, factor in drawn]
    after = Predictor(WORKLOAD, calibrate(WORKLOAD, measurements))
    for measurement in measurements:
        assert after.predict(measurement.plan).allocated.upper >= measurement.allocated_bytes


def test_a_measured_step_time_scales_all_step_times() -> None:
    plain = Predictor(WORKLOAD).predict(PLANS[0])
    probe = Measurement(PLANS[0], int(plain.allocated.expected), step_seconds=2 * plain.step_seconds.expected)
    learned = Predictor(WORKLOAD, calibrate(WORKLOAD, [probe])).predict(PLANS[0])
    assert learned.step_seconds.expected == pytest.approx(2 * plain.step_seconds.expected, rel=1e-4)
    assert learned.step_seconds.width < plain.step_seconds.width


def test_a_measurement_needs_a_peak() -> None:
    with pytest.raises(ValueError, match="give allocated, reserved or device bytes"):
        Measurement(PLANS[0])
    with pytest.raises(ValueError, match="at least one measurement"):
        calibrate(WORKLOAD, [])


@given(st.sampled_from(PLANS), st.floats(0.92, 1.08))
def test_a_stale_measurement_teaches_less_than_a_new_one(plan: Plan, factor: float) -> None:
    measured = replace(_measured(plan, factor), step_seconds=factor)
    plain = Predictor(WORKLOAD)
    new, stale = (
        Predictor(WORKLOAD, calibrate(WORKLOAD, [replace(measured, stale=is_stale)])) for is_stale in (False, True)
    )
    for each in PLANS:
        before, weak, strong = (predictor.predict(each) for predictor in (plain, stale, new))
        assert strong.allocated.width <= weak.allocated.width <= before.allocated.width
        assert strong.step_seconds.width < weak.step_seconds.width
        learned, taught = (found.allocated.expected - before.allocated.expected for found in (weak, strong))
        assert abs(learned) <= abs(taught) + 1


@given(st.integers(1, 6), st.floats(0.8, 1.25), st.floats(0.5, 2.0))
def test_however_many_are_stale_the_new_one_counts_more(count: int, factor: float, slower: float) -> None:
    def measured(plan: Plan, memory: float, seconds: float, stale: bool) -> Measurement:
        plain = Predictor(WORKLOAD).predict(plan)
        sizes = int(plain.allocated.expected * memory), plain.step_seconds.expected * seconds
        return Measurement(plan, allocated_bytes=sizes[0], step_seconds=sizes[1], stale=stale)

    new = measured(PLANS[0], 1.0, 1.0, stale=False)
    stale = [measured(plan, factor, slower, stale=True) for plan in PLANS[:count]]
    learned = calibrate(WORKLOAD, [*stale, new])
    for plan in PLANS:
        before, after = (Predictor(WORKLOAD, each).predict(plan).step_seconds.expected for each in (None, learned))
        assert abs(math.log(after / before)) <= 0.21 * abs(math.log(slower)) + 1e-9
    peak = Predictor(WORKLOAD, learned).predict(PLANS[0]).allocated.expected
    assert abs(peak / new.allocated_bytes - 1) <= 0.5 * abs(factor - 1) + 1e-3


@given(st.permutations(range(4)))
def test_the_order_of_measurements_matters_little_even_where_some_are_stale(order: list[int]) -> None:
    measurements = [replace(_measured(plan, 1.1), stale=number % 2 == 0) for number, plan in enumerate(PLANS[:4])]
    learned = calibrate(WORKLOAD, [measurements[number] for number in order])
    straight = calibrate(WORKLOAD, measurements)
    for plan in PLANS:
        found, wanted = (Predictor(WORKLOAD, each).predict(plan).allocated for each in (learned, straight))
        assert found.expected == pytest.approx(wanted.expected, rel=0.01)


def test_unknown_facts_widen_the_interval_until_a_measurement() -> None:
    plan, other = PLANS[0], PLANS[1]
    apart, before = of_components(WORKLOAD).predict(other), Predictor(WORKLOAD).predict(other)
    assert before.device.upper > apart.device.upper
    assert before.job_width_bytes > 0
    after = Predictor(WORKLOAD, calibrate(WORKLOAD, [_measured(plan, 1.02)])).predict(other)
    assert after.job_width_bytes == 0
    assert after.device.width < 1.2


def test_without_a_measured_step_all_plans_have_the_speed_interval_of_published_runs() -> None:
    silent = calibrate(WORKLOAD, [replace(_measured(PLANS[0], 1.02), step_seconds=0.0)])
    for predictor in (Predictor(WORKLOAD), Predictor(WORKLOAD, silent)):
        low, expected, high = predictor.predict(PLANS[1]).step_seconds
        assert (expected / low, high / expected) == pytest.approx((1 + TRUST, 1 + TRUST))


def test_a_virtual_gpu_is_none_of_those_that_published_jobs_ran_on() -> None:
    rehearsal = replace(WORKLOAD, virtual=True)
    assert Predictor(rehearsal).predict(PLANS[0]).device == of_components(rehearsal).predict(PLANS[0]).device


def test_counted_components_stay_certain_before_any_measurement() -> None:
    # Weights and states of a plan with full checkpointing are most of it, whatever else the script does.
    plan = Plan.parse("bf16-z0-full-mb1x8")
    found = Predictor(WORKLOAD).predict(plan)
    names = {"weights", "master weights", "gradients", "optimizer states"}
    counted = sum(part.bytes.expected for part in found.components if part.name in names)
    assert min(found.allocated.lower, found.needed.lower) >= 0.95 * counted
    assert found.allocated.upper > 1.12 * found.allocated.expected
