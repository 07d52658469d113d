"""The GPU benchmark without a GPU: what it would measure, its page, and what it keeps of a snapshot."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accuracy import summary
from gpu_pairs import (
    MODELS,
    PAIRS,
    SINGLE_GPU_PLANS,
    SMALLEST,
    Pair,
    building_bytes,
    in_turns,
    nccl,
    prediction,
    single_gpu_pairs,
    split,
    workload,
)
from gpu_score import Result, after_probes, scored, ways
from gpu_snapshot import MOST_EVENTS, Replayed, fixture_of, is_whole, read, recorded, replayed, write
from gpu_table import Machine, llmem, report
from small_traces import small_trace

from memtune.gpus.gpu import GPUS
from memtune.memory.formulas.shape import shape_of
from memtune.memory.prediction import Interval, Prediction
from memtune.memory.predictor import Predictor
from memtune.memory.traced_model import TracedModel
from memtune.plans.knobs import Precision
from memtune.plans.plan import Plan
from memtune.units import GIB, KIB, MIB

MACHINE = Machine("NVIDIA H100 80GB HBM3", int(79.1 * GIB), "550.54", "12.8", "2.9.0", "0.18.0", "3.12.3")
TRACES = dict.fromkeys(MODELS, TracedModel("small", small_trace()))
ALONE, OF_EIGHT = Pair("0.5B", "bf16-z1-none-mb4x2"), Pair("7B", "bf16-z3-full-mb4x2", 8)


def formulas(pair: Pair) -> Prediction:
    return prediction(pair, MACHINE.gpu)


def test_forty_pairs_cover_every_library_format_and_checkpointing_half_of_them_as_one_of_several_ranks() -> None:
    plans = [Plan.parse(pair.plan) for pair in PAIRS]
    assert len(PAIRS) == len(set(PAIRS)) == 40
    assert sum(not pair.is_alone for pair in PAIRS) >= 20
    assert {pair.world for pair in PAIRS} == {1, 2, 8, 64}
    assert {plan.sharding.backend for plan in plans} == {"ddp", "deepspeed", "fsdp"}
    assert {plan.precision for plan in plans} == set(Precision)
    assert {plan.checkpointing.mode for plan in plans} == {"none", "selective", "every", "full"}
    assert {pair.model for pair in PAIRS} == set(MODELS) - {SMALLEST}


def test_a_call_that_is_cut_off_has_measured_something_of_every_model_and_number_of_ranks() -> None:
    ordered = in_turns(PAIRS)
    assert sorted(ordered) == sorted(PAIRS)
    first = ordered[:14]
    assert {pair.model for pair in first} == set(MODELS) - {SMALLEST}
    assert {pair.world for pair in first} == {1, 2, 8, 64}
    assert {Plan.parse(pair.plan).sharding.backend for pair in ordered[:20]} == {"ddp", "deepspeed", "fsdp"}
    assert {(pair.model, pair.world) for pair in first} == {(pair.model, pair.world) for pair in PAIRS}


def test_the_emulated_peak_stands_beside_truth_and_prediction() -> None:
    measured = Result(ALONE, 20 * GIB, 21 * GIB, 22 * GIB, 0.25, 23 * GIB)
    other = Result(OF_EIGHT, 20 * GIB, 21 * GIB, 20 * GIB, 0.25, 23 * GIB)
    emulated = {ALONE: measured._replace(device_bytes=11 * GIB), OF_EIGHT: Result(OF_EIGHT, ran_out=True)}
    there = MACHINE._replace(torch="2.13.0", driver="none, it is emulated")
    page = report("A page", "the command", [MACHINE], [measured, other], TRACES, emulated, [there])
    assert "NVIDIA H100 80GB HBM3 (79.1 GiB), CUDA 12.8, torch 2.13.0, DeepSpeed 0.18.0, Python 3.12.3." in page
    assert any(" | 22.00 | 11.00 | -50.0% | " in line for line in page)
    assert any(" | 20.00 | out of memory |  | " in line for line in page)
    assert "*Emulated*, of 1 pairs: median error 50.0%, 90th percentile 50.0%." in page
    assert not any("mulated" in line for line in report("A page", "c", [MACHINE], [measured], TRACES))
    another = [there._replace(product="NVIDIA H200", usable_bytes=140 * GIB)]
    assert not any(
        "mulated" in line for line in report("A page", "c", [MACHINE], [measured], TRACES, emulated, another)
    )


def test_a_pair_too_large_for_the_gpu_is_left_out() -> None:
    may, cannot = split(PAIRS, GPUS["a100-80gb"])
    assert (len(may), len(cannot)) == (40, 0)
    may, cannot = split(PAIRS, GPUS["t4-16gb"])
    assert len(may) + len(cannot) == 40
    assert Pair("3B", "bf16-z1-full-mb4x1") in cannot


@pytest.mark.parametrize(("gpu", "model"), [("t4-16gb", "0.5B"), ("h100-80gb", "1.1B"), ("h200-141gb", "3B")])
def test_twelve_plans_are_of_the_largest_model_that_fits_under_all_of_them(gpu: str, model: str) -> None:
    pairs = single_gpu_pairs(GPUS[gpu])
    assert {pair.model for pair in pairs} == {model}
    assert [pair.plan for pair in pairs] == list(SINGLE_GPU_PLANS)
    assert len({Plan.parse(plan).family for plan in SINGLE_GPU_PLANS}) >= 10


def test_a_rank_whose_others_are_fake_has_no_nccl_in_its_prediction_which_is_an_interval_of_its_own() -> None:
    gpu = MACHINE.gpu
    assert nccl(ALONE, gpu) == Interval(0.0, 0.0, 0.0)
    low, middle, high = nccl(OF_EIGHT, gpu)
    assert low < middle < high
    real = Predictor(replace(workload(OF_EIGHT, gpu), fake_ranks=False)).predict(Plan.parse(OF_EIGHT.plan))
    assert prediction(OF_EIGHT, gpu).device.expected == pytest.approx(real.device.expected - middle)
    assert {each.name for each in prediction(OF_EIGHT, gpu).components} == {
        each.name for each in real.components if each.name != "nccl"
    }


def test_memory_without_nccl_is_as_unsure_as_its_parts() -> None:
    found = prediction(Pair("3B", "bf16-fsdp-every2-mb4x1", 64), MACHINE.gpu)
    (context,) = (each.bytes for each in found.components if each.name == "context")
    half_widths = [each.upper - each.expected for each in (found.reserved, context)]
    assert found.device.upper - found.device.expected == pytest.approx(math.hypot(*half_widths))


def test_the_page_lists_measured_and_unmeasured_pairs() -> None:
    measured = Result(ALONE, 20 * GIB, 21 * GIB, 22 * GIB, 0.25, 23 * GIB)
    page = report("A page", "the command", [MACHINE], [measured, Result(OF_EIGHT, problem="it broke")], TRACES)
    text = "\n".join(page)
    assert (
        "NVIDIA H100 80GB HBM3 (79.1 GiB), driver 550.54, CUDA 12.8, torch 2.9.0, DeepSpeed 0.18.0, Python 3.12.3;"
        in text
    )
    (line,) = (line for line in page if line.startswith("| 0.5B |"))
    # Weights in bf16 and fp32: 6 bytes for each of 478,465,280 parameters.
    assert line.startswith("| 0.5B | bf16-z1-none-mb4x2 | 1 | 23.00 | 2.67 (-88.4%) | 20.00 | 21.00 | 22.00 | ")
    error = scored([measured], MACHINE.gpu, formulas)[0].interval.expected / (22 * GIB) - 1
    assert f" | {error:+.1%} | " in line
    assert "|  | 250 ms |" in line
    assert "- 0.5B, bf16-z1-none-mb4x2: 23.00 GiB, 21.00 GiB" in page, "building took more than stepping"
    assert "- 7B, bf16-z3-full-mb4x2, rank 0 of 8: it broke" in page
    assert "by formulas: n=1 " in text
    assert "by trace: n=1 " in text


def test_stage_3_is_predicted_to_build_the_whole_model_that_64_ranks_then_share() -> None:
    total = shape_of(MODELS["13B"], None).total
    assert building_bytes(Pair("13B", "bf16-z3-full-mb4x1", 64), MACHINE.gpu) == pytest.approx(2 * total)
    assert building_bytes(Pair("13B", "bf16-z2-full-mb4x1", 64), MACHINE.gpu) == pytest.approx(4 * total)


def test_the_page_shows_nccl_separately_for_several_ranks() -> None:
    low, middle, high = (size / GIB for size in nccl(OF_EIGHT, MACHINE.gpu))
    page = report(
        "A page", "the command", [MACHINE], [Result(pair, 1, 1, 1, 0.25) for pair in (ALONE, OF_EIGHT)], TRACES
    )
    cells = {line.split(" | ")[0]: line.split(" | ")[-3] for line in page if " | 250 ms | " in line}
    assert cells == {"| 0.5B": "", "| 7B": f"{middle:.2f} ({low:.2f}–{high:.2f})"}


def test_memory_that_was_predicted_to_suffice_and_did_not_counts_as_truth_above_the_upper_bound() -> None:
    expected, upper = formulas(ALONE).device[1:]
    gpu = MACHINE.gpu.with_memory(int(upper) + MIB)
    results = [Result(ALONE, ran_out=True)]
    (one,) = scored(results, gpu, formulas)
    assert one.is_under
    assert one.error == pytest.approx(1 - expected / gpu.usable_bytes)
    page = report("A page", "the command", [MACHINE._replace(usable_bytes=gpu.usable_bytes)], results, TRACES)
    assert f"ran out of memory, > {gpu.usable_bytes / GIB:.1f} GiB; by formulas " in page[-1]
    assert f"too little by {one.error:.1%} or more, scored as above the upper bound; by trace " in page[-1]
    assert any(line.startswith("by formulas: n=1 ") and "under_rate=100.00" in line for line in page)


def test_an_out_of_memory_within_the_interval_is_reported_and_not_scored() -> None:
    gpu = MACHINE.gpu.with_memory(int(formulas(ALONE).device.upper) - MIB)
    results = [Result(ALONE, ran_out=True)]
    assert scored(results, gpu, formulas) == []
    page = report("A page", "the command", [MACHINE._replace(usable_bytes=gpu.usable_bytes)], results, TRACES)
    assert page[-3] == "Ran out of memory:"
    assert "), which allows for it, not scored; by trace " in page[-1]


def test_formulas_and_traces_are_scored_side_by_side() -> None:
    predict = ways(MACHINE.gpu, TRACES)["trace"]
    expected = predict(ALONE).device.expected
    assert expected == Predictor(workload(ALONE, MACHINE.gpu, TRACES["0.5B"])).predict(Plan.parse(ALONE.plan)).device[1]
    page = report("A page", "the command", [MACHINE], [Result(ALONE, 1, 1, int(expected), 0.25)], TRACES)
    (line,) = (line for line in page if line.startswith("| 0.5B |"))
    off = formulas(ALONE).device.expected / int(expected) - 1
    assert [cell for cell in line.split(" | ") if "%" in cell] == [f"{off:+.1%}", "+0.0%"]
    (by_trace,) = (line for line in page if line.startswith("by trace: "))
    assert "median_ape=0.00" in by_trace
    assert "under_rate=0.00" in by_trace


def _exactly(pair: Pair, share: float) -> Result:
    """Return a result that is off by the same share everywhere."""
    found = formulas(pair)
    allocated, reserved, device = (
        int(share * each.expected) for each in (found.allocated, found.reserved, found.device)
    )
    return Result(pair, allocated, reserved, device, 0.25)


def test_two_pairs_of_a_model_correct_the_prediction_of_its_others() -> None:
    pairs = [pair for pair in PAIRS if pair.model == "0.5B"]
    results = [_exactly(pair, 1.15) for pair in pairs]
    before = {each.row.id: each for each in scored(results, MACHINE.gpu, formulas)}
    after = after_probes(results, MACHINE.gpu, {})
    # Seven of them have one rank: the first two are the probes, and teach about two ranks, too.
    assert [each.row.id for each in after] == [str(pair) for pair in pairs[2:]]
    for each in after:
        assert each.error < before[each.row.id].error / 2
        assert each.interval.width < before[each.row.id].interval.width
    page = report("A page", "the command", [MACHINE], results, TRACES)
    assert any(line.startswith("| by formulas, after two probes: model |") for line in page)
    assert f"by formulas, after two probes: {summary(after)}" in page


def test_a_model_with_two_results_or_fewer_has_nothing_to_be_scored_on_after_two_probes() -> None:
    pairs = [pair for pair in PAIRS if pair.model == "7B"][:2]
    assert after_probes([_exactly(pair, 1.15) for pair in pairs], MACHINE.gpu, {}) == []
    assert after_probes([Result(pair, problem="no") for pair in pairs], MACHINE.gpu, {}) == []


def test_a_pair_that_ran_out_of_memory_is_not_used_as_a_probe() -> None:
    first, second, third = [pair for pair in PAIRS if pair.model == "0.5B" and pair.is_alone][:3]
    gpu = MACHINE.gpu.with_memory(int(formulas(first).device.upper) + MIB)
    after = after_probes([Result(first, ran_out=True), _exactly(second, 1.0), _exactly(third, 1.0)], gpu, {})
    assert [(each.row.id, each.is_under) for each in after] == [(str(first), True)]


def test_a_page_without_a_measurement_has_no_number() -> None:
    page = report("A page", "the command", [MACHINE], [Result(ALONE, problem="no memory")], TRACES)
    assert not any(line.startswith("|") for line in page)


def test_the_rule_in_the_way_of_llmem_by_hand() -> None:
    (one,) = scored([Result(OF_EIGHT, device_bytes=1)], MACHINE.gpu, formulas)
    parameters, tokens = one.row.shape.trainable, 4 * 2048
    states = parameters * (2 + 2 + 12) / 8
    assert llmem(one.row) == pytest.approx(0.5 * GIB + states + 2 * tokens * 4096 * 32 + 10 * tokens * 32_000)


def _entry(action: str, addr: int, size: int, stream: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream, "frames": []}


@pytest.fixture
def made() -> dict[str, Any]:
    """Return what is kept of a snapshot with two streams, of which only one can reuse a freed block."""
    trace = [
        _entry("segment_alloc", 0, 2 * MIB),
        _entry("alloc", 0, 100 * KIB),
        _entry("segment_alloc", 1 << 30, 20 * MIB),
        _entry("alloc", 1 << 30, 5 * MIB),
        _entry("free_requested", 1 << 30, 5 * MIB),
        _entry("free_completed", 1 << 30, 5 * MIB),
        _entry("alloc", 1 << 30, 6 * MIB),
        _entry("segment_alloc", 1 << 40, 20 * MIB, stream=7),
        _entry("alloc", 1 << 40, 6 * MIB, stream=7),
    ]
    return fixture_of({"device_traces": [trace], "allocator_settings": {"expandable_segments": False}}, "2.9.0")


def test_a_snapshot_becomes_requests_that_the_allocator_model_reserves_alike(made: dict[str, Any]) -> None:
    assert [each for each in made["events"] if each[0] != "+"][1:4] == [
        ["a", 1 << 30, 5 * MIB, 0], ["f", 1 << 30], ["a", 1 << 30, 6 * MIB, 0]
    ]  # fmt: skip
    assert made["events"][-2:] == [["+", 1 << 40, 20 * MIB], ["a", 1 << 40, 6 * MIB, 1]]
    assert recorded(made).reserved_bytes == made["reserved_at_end"] == 42 * MIB
    assert replayed(made) == recorded(made)


def test_the_retries_of_a_fixture_are_those_that_torch_counted_where_it_was_asked(made: dict[str, Any]) -> None:
    """What the events are read as can be wrong, and then a replay shows it."""
    assert recorded(made).retries == 0
    trace = {"device_traces": [_freed_and_asked_for_more("segment_free")]}
    assert recorded(fixture_of(trace, "2.9.0", retries=1)) == recorded(fixture_of(trace, "2.9.0"))
    counted = fixture_of(trace, "2.9.0", retries=3)
    assert counted["retries"] == recorded(counted).retries == 3
    assert replayed(counted) != recorded(counted)


def test_a_recording_that_torch_has_cut_off_is_not_whole() -> None:
    assert is_whole({"device_traces": [[{}] * (MOST_EVENTS - 1)]})
    assert not is_whole({"device_traces": [[{}] * MOST_EVENTS]})


def test_kept_results_round_trip(made: dict[str, Any], tmp_path: Path) -> None:
    write(made, tmp_path / "new" / "made.json.gz")
    assert read(tmp_path / "new" / "made.json.gz") == made


def _freed_and_asked_for_more(given_back: str) -> list[dict[str, Any]]:
    first, second = 1 << 40, 1 << 30
    return [
        _entry("segment_alloc", first, 20 * MIB),
        _entry("alloc", first, 9 * MIB),
        _entry("free_completed", first, 9 * MIB),
        _entry(given_back, first, 20 * MIB),
        _entry("segment_alloc", second, 24 * MIB),
        _entry("alloc", second, 24 * MIB),
    ]


@pytest.mark.parametrize("given_back", ["segment_free", "segment_unmap"])
@pytest.mark.parametrize(("emptied", "retries"), [([0], 0), ([], 1), ([20 * MIB], 1)])
def test_a_fixture_distinguishes_a_retry_from_an_emptied_cache(
    emptied: list[int], retries: int, given_back: str
) -> None:
    """Both give memory back, without which 44 MiB would be reserved. The trace has the same events for them."""
    fixture = fixture_of({"device_traces": [_freed_and_asked_for_more(given_back)]}, "2.9.0", emptied)
    kinds = [kind for kind, *_ in fixture["events"]]
    assert kinds == (["+", "a", "f", "-", "+", "a"] if retries else ["+", "a", "f", "e", "-", "+", "a"])
    assert fixture["reserved_at_end"] == 24 * MIB
    assert replayed(fixture) == recorded(fixture) == Replayed(24 * MIB, retries, 0)
    kept = [each for each in fixture["events"] if each[0] not in "-e"]
    assert replayed({**fixture, "events": kept}) == Replayed(44 * MIB, 0, 0)


def test_memory_returned_without_a_request_counts_as_an_emptied_cache() -> None:
    trace = _freed_and_asked_for_more("segment_free")
    trace[4:4] = [_entry("segment_alloc", 1, 2 * MIB), _entry("alloc", 1, KIB)]
    trace[3:3] = [_entry("segment_alloc", 2, 20 * MIB, 5), _entry("alloc", 2, 9 * MIB, 5)]
    trace[6:6] = [_entry("free_completed", 2, 9 * MIB, 5)]
    fixture = fixture_of({"device_traces": [trace]}, "2.9.0")
    assert replayed(fixture) == recorded(fixture) == Replayed(46 * MIB, 0, 0)


@pytest.mark.parametrize("retried", [True, False])
def test_a_fixture_keeps_an_out_of_memory(retried: bool) -> None:
    """The allocator asks the driver again before it gives up, also where it has nothing to give back."""
    trace = _freed_and_asked_for_more("segment_free")[: 4 if retried else 2]
    trace.append({"action": "oom", "size": 90 * MIB, "device_free": 30 * MIB, "stream": 0, "frames": []})
    trace += [_entry("segment_alloc", 1 << 20, 2 * MIB), _entry("alloc", 1 << 20, KIB)]
    fixture = fixture_of({"device_traces": [trace]}, "2.9.0")
    assert ["o", 90 * MIB, 30 * MIB, 0] in fixture["events"]
    assert replayed(fixture) == recorded(fixture) == Replayed((20 if retried else 22) * MIB, 1, 1)
    without = [each for each in fixture["events"] if each[0] != "o"]
    assert recorded({**fixture, "events": without}).ooms == 0


@pytest.mark.parametrize(
    ("torch", "old", "new", "reserved"),
    [
        ("2.11.0+cu130", 1 << 40, 1 << 30, 60 * MIB),
        ("2.11.0+cu130", 1 << 30, 1 << 40, 40 * MIB),
        ("2.12.0+cu130", 1 << 40, 1 << 30, 40 * MIB),
        ("2.13.0", 1 << 30, 1 << 40, 40 * MIB),
    ],
)
def test_older_torch_takes_the_lowest_block_and_newer_torch_the_oldest_segment(
    torch: str, old: int, new: int, reserved: int
) -> None:
    """The choice shows later: only a segment that is entirely free has room for the last request."""
    trace = []
    for address in (old, new):
        trace += [_entry("segment_alloc", address, 20 * MIB), _entry("alloc", address, 9 * MIB)]
        trace += [_entry("alloc", address + 9 * MIB, 9 * MIB)]
    trace += [_entry("free_completed", address, 9 * MIB) for address in (old, new)]
    trace += [_entry("alloc", old, 9 * MIB), _entry("free_completed", new + 9 * MIB, 9 * MIB)]
    trace += [_entry("alloc", new, 20 * MIB)]
    assert replayed(fixture_of({"device_traces": [trace]}, torch)).reserved_bytes == reserved
