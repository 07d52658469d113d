"""What jobs leave to later ones: order and repetition do not matter, old entries fade, garbage is rejected."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import hypot, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtune.gpus.driver_overhead import expected_overhead
from memtune.gpus.gpu import find
from memtune.memory.calibration import Measurement, calibrate
from memtune.memory.measured_overhead import (
    MOST_JOBS,
    JobOverhead,
    MeasuredOverhead,
    is_credible,
    newest_of,
    overhead_after,
    read_measured_overhead,
)
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.planning.advice import advise
from memtune.planning.space import Space
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB

LLAMA_1B = Architecture("llama-1b", Kind.DECODER, 2048, 16, 32, 8, 64, 8192, 128256, tied_embeddings=True)
WORKLOAD = Workload(LLAMA_1B, find("h100-80gb"), 64, 2048, gpus_per_node=8)
PLAN = Plan.parse("bf16-z2-none-mb2x4")

sizes = st.integers(200 * MIB, 10 * GIB)
measurements = st.builds(JobOverhead, st.integers(0, 40), st.sampled_from([f"job-{n}" for n in range(30)]), sizes)


def outside(workload: Workload) -> tuple[float, float]:
    """Return the predicted memory outside the allocator, and the half-width that it adds."""
    found = Predictor(workload).predict(PLAN)
    widths = [metric.upper - metric.expected for metric in (found.device, found.reserved)]
    return found.device.expected - found.reserved.expected, sqrt(widths[0] ** 2 - widths[1] ** 2)


@given(st.lists(measurements, max_size=60), st.randoms(use_true_random=False))
def test_measurements_come_to_the_same_in_any_order_and_twice(found: list[JobOverhead], random: Any) -> None:
    mixed = [*found, *found]
    random.shuffle(mixed)
    assert reduce(MeasuredOverhead.having, mixed, MeasuredOverhead()) == newest_of(found)


@given(st.lists(measurements, max_size=60))
def test_each_job_counts_once_and_the_newest_stay(found: list[JobOverhead]) -> None:
    kept = newest_of(found).jobs
    assert len({each.job for each in kept}) == len(kept) <= MOST_JOBS
    dropped = {each.job for each in found} - {each.job for each in kept}
    newest = {job: max(each for each in found if each.job == job) for job in dropped}
    assert all(each < kept[0] for each in newest.values())


@given(st.lists(measurements, max_size=30))
def test_it_is_read_as_it_was_written(found: list[JobOverhead]) -> None:
    assert read_measured_overhead(newest_of(found).to_json()) == newest_of(found)


GOOD = {"job": "a", "outsideBytes": 1, "at": 1}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "text",
        {},
        {"version": 2, "jobs": []},
        {"version": 1},
        {"version": 1, "jobs": {}},
        {"version": 1, "jobs": [GOOD] * 17},
        {"version": 1, "jobs": ["a"]},
        *({"version": 1, "jobs": [{**GOOD, "at": at}]} for at in (None, -1, 1.5, True, "1", 2**70)),
        *({"version": 1, "jobs": [{**GOOD, "outsideBytes": size}]} for size in (None, -1, float("nan"), 2**70)),
        *({"version": 1, "jobs": [{**GOOD, "job": job}]} for job in (None, "", "x" * 17, "a b", 7)),
    ],
)
def test_an_invalid_measurement_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_measured_overhead(data)


def test_a_job_does_not_learn_from_itself() -> None:
    known = newest_of([JobOverhead(1, "mine", GIB), JobOverhead(2, "another", 2 * GIB)])
    assert known.of_others("mine") == (2 * GIB,)


def test_the_overhead_of_earlier_jobs_is_expected_and_within_the_interval() -> None:
    """The constants say 500 MiB and 1,000 MiB of NCCL on 8 GPUs."""
    assert outside(WORKLOAD) == pytest.approx((1500 * MIB, hypot(0.4 * 500, 0.6 * 1000) * MIB))
    after = outside(replace(WORKLOAD, overhead_bytes=(1200 * MIB, 1300 * MIB, 1250 * MIB)))
    assert after == pytest.approx((1250 * MIB, 0.2 * 1250 * MIB))


def test_parts_of_the_overhead_are_as_unsure_as_their_sum() -> None:
    """Their errors are correlated, so half-widths add up to that of the sum: 20% of 1,000 MiB, not of 1,500."""
    knows = replace(WORKLOAD, overhead_bytes=(1000 * MIB,) * 5)
    found = [part.bytes for part in Predictor(knows).predict(PLAN).components if part.name in ("context", "nccl")]
    assert sum(part.expected for part in found) == pytest.approx(1000 * MIB)
    assert sum(part.upper - part.expected for part in found) == pytest.approx(200 * MIB)


@given(st.lists(sizes, min_size=1, max_size=MOST_JOBS))
def test_every_earlier_job_is_within_the_interval(found: list[int]) -> None:
    middle, half_width = overhead_after(found, 8)
    assert all(abs(size - middle) <= half_width for size in found)
    assert half_width >= 0.2 * middle


@given(sizes)
def test_one_job_alone_does_not_outweigh_the_constants(size: int) -> None:
    middle, half_width = overhead_after([size], 8)
    assert abs(1500 * MIB - middle) <= half_width


@given(st.lists(sizes, min_size=3, max_size=3), sizes)
def test_one_job_among_several_moves_the_expectation_no_further_than_to_the_next(found: list[int], odd: int) -> None:
    middle, _ = overhead_after([*found, odd], 8)
    assert min(found) <= middle <= max(found)


def test_implausible_context_sizes_are_rejected() -> None:
    assert [is_credible(size, 1) for size in (0, 30 * MIB, 400 * MIB, 3 * GIB)] == [False, False, True, False]
    assert is_credible(5 * GIB, 8)


@pytest.mark.parametrize("world", [1, 2, 8, 48])
def test_a_prediction_adds_what_the_driver_is_expected_to_take(world: int) -> None:
    workload = Workload(LLAMA_1B, find("h100-80gb"), 96, 2048, gpus_per_node=world)
    found = Predictor(workload).predict(Plan.parse(f"bf16-z0-none-mb2x{96 // 2 // world}"))
    assert found.device.expected - found.reserved.expected == pytest.approx(sum(expected_overhead(world).values()))


def test_the_rest_of_a_prediction_stays_as_it_is() -> None:
    before, after = Predictor(WORKLOAD), Predictor(replace(WORKLOAD, overhead_bytes=(GIB, GIB)))
    assert after.predict(PLAN).reserved == before.predict(PLAN).reserved
    alone = Workload(LLAMA_1B, find("h100-80gb"), 64, 2048)
    assert sum(expected_overhead(1).values()) == 500 * MIB
    plan = Plan.parse("bf16-z0-none-mb2x32")
    found = Predictor(replace(alone, overhead_bytes=(400 * MIB,))).predict(plan)
    assert found.device.expected - found.reserved.expected == pytest.approx(400 * MIB)


def test_a_virtual_gpu_has_nothing_there_to_learn() -> None:
    virtual = replace(WORKLOAD, virtual=True)
    knows = replace(virtual, overhead_bytes=(GIB,))
    assert Predictor(knows).predict(PLAN).device == Predictor(virtual).predict(PLAN).device


def test_a_jobs_own_probes_go_on_from_there() -> None:
    """The memory is the prior; the job's own measurement moves and tightens it."""
    knows = replace(WORKLOAD, overhead_bytes=(1200 * MIB, 1300 * MIB))
    before = Predictor(knows).predict(PLAN)
    reserved = int(before.reserved.expected)
    calibrated = Predictor(knows, calibrate(knows, [Measurement(PLAN, 0, reserved, reserved + 1400 * MIB)]))
    after = calibrated.predict(PLAN)
    assert after.device.expected - after.reserved.expected == pytest.approx(1400 * MIB, rel=0.02)
    assert after.device.width < before.device.width


def test_advice_about_more_gpus_ignores_overhead_measured_on_fewer() -> None:
    tight = replace(WORKLOAD, gpu=WORKLOAD.gpu.with_memory(16 * GIB))
    told = advise(replace(tight, overhead_bytes=(9 * GIB,)), Predictor, PLAN, 0.06, Space(), is_fixed=True)
    wider = "use 64 GPUs in place of 8, 8 on each of 8 nodes"
    assert f"{wider}: bf16-z2-none-mb1x1 is predicted to take 12.5 GiB of each GPU" in told
