"""Which unmeasured plans are launched: those whose needed bytes leave the headroom free with a stated probability."""

from dataclasses import replace
from typing import Any

import pytest

from memtune.controller.oom_recovery import fastest_accepted
from memtune.gpus.gpu import find
from memtune.memory.prediction import ADMISSION, BOUND, Interval, Prediction, percent, share_below
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.planning.knowledge import Lesson, PlanKnowledge
from memtune.planning.space import THROUGHPUT, Space, rank
from memtune.plans.knobs import FULL, NO_CHECKPOINTING, Sharding
from memtune.plans.plan import Plan

TINY = Architecture("tiny", Kind.DECODER, 64, 2, 4, 4, 16, 256, 1000)
WORKLOAD = Workload(TINY, find("h100-80gb"), global_batch=8, sequence_length=128)
USABLE = WORKLOAD.gpu.usable_bytes


def prediction(
    peak: float, needed: float, speed: float = 1.0, half_width: float = 0.1, job_width_bytes: float = 0.0
) -> Prediction:
    """Of a peak and needed bytes as shares of the GPU."""
    device, least = (Interval(s / (1 + half_width), s, s * (1 + half_width)) for s in (peak * USABLE, needed * USABLE))
    rate = Interval(speed, speed, speed)
    return Prediction("loss", dict, tuple, device, device, device, device, device, least, rate, rate, job_width_bytes)


def test_the_bound_is_the_quantile_of_the_probability_that_is_asked_for() -> None:
    assert share_below(BOUND) == pytest.approx(ADMISSION, abs=1e-4)


def test_a_plan_is_admitted_at_exactly_the_probability_that_is_asked_for() -> None:
    edge = prediction(0.94 / 1.1, 0.94 / 1.1)
    assert edge.fit_probability(USABLE, 0.06) == pytest.approx(ADMISSION, abs=1e-4)
    assert prediction(0.85, 0.85).fits(USABLE, 0.06)
    assert not prediction(0.86, 0.86).fits(USABLE, 0.06)


def test_a_plan_that_is_not_admitted_is_never_said_to_have_the_probability_that_is_asked_for() -> None:
    close = prediction(0.855, 0.855).fit_probability(USABLE, 0.06)
    assert 0.945 < close < ADMISSION
    assert percent(close) == 94
    assert [percent(each) for each in (0.0, 0.944, ADMISSION, 0.956, 1.0)] == [0, 94, 95, 96, 100]


def test_needed_memory_decides_and_not_the_peak() -> None:
    flushing = prediction(1.05, 0.8)
    assert flushing.fits(USABLE, 0.06)
    assert flushing.flushes(USABLE)
    assert not flushing.cannot_fit(USABLE)
    assert prediction(1.3, 1.2).cannot_fit(USABLE)


def test_a_probe_that_flushes_leaves_no_headroom_free() -> None:
    assert prediction(1.05, 0.8).probe_probability(USABLE, 0.06) < 0.1


def test_shared_uncertainty_is_no_reason_to_probe_a_plan_first() -> None:
    apart = prediction(0.9, 0.9, half_width=0.1)
    wide = prediction(0.9, 0.9, half_width=0.5, job_width_bytes=0.9 * USABLE * (0.5**2 - 0.1**2) ** 0.5)
    assert wide.fit_probability(USABLE, 0.06) < apart.fit_probability(USABLE, 0.06)
    assert wide.probe_probability(USABLE, 0.06) == pytest.approx(apart.probe_probability(USABLE, 0.06))


@pytest.mark.parametrize(("speed", "first"), [(1.09, "bf16-ddp-full-mb1x8"), (1.2, "bf16-ddp-none-mb1x8")])
def test_a_plan_that_has_to_flush_comes_first_only_where_it_is_much_quicker(speed: float, first: str) -> None:
    found = {
        Plan.parse("bf16-ddp-full-mb1x8"): prediction(0.7, 0.7),
        Plan.parse("bf16-ddp-none-mb1x8"): prediction(1.05, 0.8, speed),
    }

    class Known:
        def predict(self, plan: Plan) -> Prediction:
            return found[plan]

    assert str(rank(WORKLOAD, Known(), found, 0.06).fitting[0].plan) == first


@pytest.mark.parametrize(("speed", "kept"), [(1.09, "full"), (1.2, "none")])
def test_after_an_out_of_memory_a_flushing_plan_is_taken_only_where_much_faster(speed: float, kept: str) -> None:
    roomy, flushing = (Plan.parse(f"bf16-ddp-{kind}-mb1x8") for kind in ("full", "none"))
    found = {roomy: prediction(0.7, 0.7), flushing: prediction(1.05, 0.8, speed)}

    class Known(PlanKnowledge):
        def predict(self, plan: Plan) -> Prediction:
            return found[plan]

    space = Space(shardings=(Sharding.DDP,), micro_batches=(1,), checkpointings=(FULL, NO_CHECKPOINTING))
    knowledge = Known(WORKLOAD, space, (), 0.06, THROUGHPUT)
    assert fastest_accepted(knowledge, Plan.parse("bf16-ddp-full-mb2x4"), found.__contains__) == Plan.parse(
        f"bf16-ddp-{kept}-mb1x8"
    )


def test_needed_memory_never_exceeds_the_peak() -> None:
    job = replace(WORKLOAD, model=replace(TINY, hidden_size=2048, layers=16, head_dim=512, ffn_size=8192))
    for words in ("ddp-none", "z2-full", "z3-full", "fsdp-none"):
        for end in ("", "-exp"):
            found = Predictor(replace(job, gpus_per_node=8)).predict(Plan.parse(f"bf16-{words}-mb1x1{end}"))
            assert all(least <= peak for least, peak in zip(found.needed, found.device, strict=True))
            assert found.needed.expected > found.allocated.expected


LARGE = replace(TINY, hidden_size=4096, layers=32, heads=32, kv_heads=32, head_dim=128, ffn_size=11008)
SHARDED = Plan.parse("bf16-fsdp-sel-mb8x1")


def short_of_memory(*lessons: Lesson) -> PlanKnowledge:
    """Of a job on a GPU that is smaller than the peak of a sharded plan, and larger than what the plan needs."""
    job = Workload(LARGE, find("h100-80gb"), global_batch=64, sequence_length=2048, gpus_per_node=8)
    peak = Predictor(job).predict(SHARDED)
    usable = int((peak.needed.expected + peak.device.expected) / 2)
    space = Space(shardings=(Sharding.FSDP, Sharding.ZERO_3))
    return PlanKnowledge(replace(job, gpu=job.gpu.with_memory(usable)), space, lessons, 0.06, THROUGHPUT)


def test_an_out_of_memory_bounds_needed_memory_and_not_the_peak() -> None:
    # The allocator had emptied its cache before it failed.
    before = short_of_memory()
    needed, peak = before.predict(SHARDED).needed.expected, before.predict(SHARDED).device.expected
    demanded = int(1.01 * before.usable_bytes)
    assert needed < demanded < peak
    after = short_of_memory(Lesson(SHARDED, died=True, demanded_bytes=demanded)).predict(SHARDED)
    assert after.needed.expected == pytest.approx(demanded, rel=0.01)
    assert after.device.expected > peak


def test_an_out_of_memory_alone_makes_no_job_a_measured_one() -> None:
    died = Lesson(SHARDED, died=True, demanded_bytes=int(1.01 * short_of_memory().usable_bytes))
    before, after = (each.predict(SHARDED) for each in (short_of_memory(), short_of_memory(died)))
    assert after.job_width_bytes == pytest.approx(before.job_width_bytes, rel=0.2)
    ran = Lesson(SHARDED.with_micro_batch(1), reserved_bytes=int(20e9), device_bytes=int(21e9))
    assert short_of_memory(ran, died).predict(SHARDED).job_width_bytes == 0


@pytest.mark.parametrize("clock", [{"stale": True}, {"step_seconds": 1e7}, {"died": True}])
def test_unrelated_measurements_leave_counted_seconds(clock: dict[str, Any]) -> None:
    plan, other = SHARDED.with_micro_batch(1), SHARDED.with_micro_batch(2)
    expected = short_of_memory().predict(plan)
    variables: dict[str, Any] = {"reserved_bytes": int(expected.reserved.expected), "step_seconds": 1.0}
    timed = Lesson(other, **{**variables, **clock})
    seconds = 2 * short_of_memory(timed).predict(plan).step_seconds.expected
    counted = Lesson(plan, **{**variables, "step_seconds": seconds}, counted=True)
    found = replace(short_of_memory(timed), emulations=(counted,)).predict(plan)
    assert found.step_seconds.expected > 0.7 * seconds


def test_a_gpu_behind_its_cpu_may_have_all_released_weights_beyond_an_emulated_peak() -> None:
    # A layer has 4 x 4,096 x 4,096 + 3 x 4,096 x 11,008 + 2 x 4,096 weights; embedding and head have 1,000 x 4,096
    # each, the last norm 4,096. Stage 3 has 1,000,000,000 of them at a time, and all are in 2 bytes.
    behind = 2 * (32 * 202_383_360 + 2 * 4_096_000 + 4_096 - 1_000_000_000)
    plan, other = (Plan.parse(f"bf16-z3-sel-mb{words}") for words in ("4x2", "8x1"))
    job = short_of_memory()
    emulated = replace(job, emulations=(Lesson(plan, reserved_bytes=int(40e9)),))
    found = emulated.predict(plan)
    assert found.device.upper == pytest.approx(1.02 * found.device.expected + behind)
    assert found.needed.upper == pytest.approx(1.02 * found.device.expected)
    # So of a plan that was not emulated itself, but not of one under another backend.
    calibrated = emulated.predictor.predict(other)
    assert emulated.predict(other).device == calibrated.device._replace(upper=calibrated.device.upper + behind)
    assert emulated.predict(other).needed == calibrated.needed
    assert emulated.predict(SHARDED).device == emulated.predictor.predict(SHARDED).device
    # A run on a GPU had what it was behind among its bytes.
    measured = replace(emulated, lessons=(Lesson(plan, reserved_bytes=int(40e9), device_bytes=int(41e9)),))
    assert measured.predict(other).device == measured.predictor.predict(other).device
