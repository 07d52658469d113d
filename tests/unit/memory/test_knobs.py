"""Every knob of a plan changes its prediction, and allocator settings are replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest

from memtune.allocator import AllocatorSettings, Event, replay
from memtune.gpus.gpu import find
from memtune.memory.constants import DEFAULT_CONSTANTS
from memtune.memory.formulas.packing import PACKINGS
from memtune.memory.formulas.recipe import lower, workspace_bytes
from memtune.memory.formulas.step_trace import packing, step_trace
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.plans.knobs import FULL, NO_CHECKPOINTING, SELECTIVE, Attention, Checkpointing, Knob, Precision
from memtune.plans.plan import Plan
from memtune.units import MIB

SMALL = Architecture("small", Kind.DECODER, 1024, 4, 16, 4, 64, 4096, 32000)
WORKLOAD = Workload(SMALL, find("h100-80gb"), global_batch=64, sequence_length=2048, gpus_per_node=8)
PREDICTOR = Predictor(WORKLOAD)
CHECKPOINTINGS = (NO_CHECKPOINTING, SELECTIVE, Checkpointing("every", 2), FULL)
INTERVALS = ("requested", "allocated", "active", "reserved", "device", "step_seconds", "tokens_per_second")


def others(value: Any) -> list[Any]:
    """Return other values of a knob, by its type; numbers may also be large."""
    if isinstance(value, Checkpointing):
        choices: list[Any] = list(CHECKPOINTINGS)
    elif isinstance(value, Knob):
        # Both 16-bit formats cost the same; fp16's loss scaler affects neither memory nor speed.
        choices = [choice for choice in type(value) if choice is not Precision.FP16]
    elif isinstance(value, bool):
        choices = [not value]
    else:
        choices = [2 * value, 64]
    return [choice for choice in choices if choice != value]


def neighbours(name: str) -> Iterator[tuple[Plan, Plan]]:
    """Yield plans that differ in one knob only, on a backend that has it."""
    for text in ("bf16-z2-none-mb2x4-bk1m", "bf16-z3-none-mb2x4-bk1m"):
        plan = Plan.parse(text)
        for value in others(getattr(plan, name)):
            with suppress(ValueError):  # the two choices exclude each other
                yield plan, replace(plan, **{name: value})


@pytest.mark.parametrize("name", [f.name for f in fields(Plan)])
def test_every_choice_of_every_knob_moves_a_prediction(name: str) -> None:
    pairs = list(neighbours(name))
    assert pairs
    for plan, other in pairs:
        before, after = PREDICTOR.predict(plan), PREDICTOR.predict(other)
        moved = [metric for metric in INTERVALS if getattr(before, metric) != getattr(after, metric)]
        assert moved, f"{other} is predicted as {plan}"


def test_fsdp_reduces_as_wide_as_the_plan_says() -> None:
    narrow, wide = (Plan.parse(f"bf16-fsdp-full-mb1x8{end}") for end in ("", "-g32"))
    buckets = [
        sum(each.bytes for each in PREDICTOR.explain(plan) if each.name == "buckets" and "reduce" in each.phase_names)
        for plan in (narrow, wide)
    ]
    assert buckets[1] - buckets[0] == 2 * PREDICTOR.shape.layer
    assert PREDICTOR.predict(wide).step_seconds.expected > PREDICTOR.predict(narrow).step_seconds.expected


def trace_of(text: str) -> list[Event]:
    plan = Plan.parse(text)
    return step_trace(PREDICTOR.shape, lower(WORKLOAD, plan), PREDICTOR.explain(plan), DEFAULT_CONSTANTS)


@pytest.mark.parametrize(
    "text", ["bf16-z2-full-mb4x2", "bf16-z3-none-mb1x8", "bf16-fsdp-sel-mb8x1", "bf16-ddp-none-mb2x4-eager-foreach"]
)
def test_the_trace_peaks_where_the_terms_do(text: str) -> None:
    active = replay(trace_of(text)).peak_active_bytes
    assert active == pytest.approx(PREDICTOR.predict(Plan.parse(text)).active.expected, rel=0.1)


def test_a_trace_frees_all_memory_of_a_step() -> None:
    events = trace_of("bf16-fsdp-none-mb4x2")
    left = {e.tensor: e.size_bytes for e in events if e.action == "alloc"}
    for event in events:
        if event.action == "free":
            del left[event.tensor]
    # Weights in fp32 and their two moments stay, sharded among eight ranks, with the cuBLAS workspaces.
    states = (4 + 8) * PREDICTOR.shape.total / 8 + workspace_bytes("h100-80gb")
    assert sum(left.values()) == pytest.approx(states, rel=1e-6)


def test_packing_by_hand() -> None:
    sizes = [("alloc", 0, 100), ("free", 0, 0), ("alloc", 1, 50), ("alloc", 2, 100)]
    events = [Event("alloc" if action == "alloc" else "free", tensor, size * MIB) for action, tensor, size in sizes]
    # Without the setting the 50 MiB are cut from the cached 100, and the next 100 need a segment of their own: 200.
    # With it, the 50 get their own, and the cached 100 serve the next 100: 150.
    assert packing(events, AllocatorSettings(max_split_size_bytes=64 * MIB)) == 150 / 200
    # Nothing here is as large as 128 MiB.
    assert packing(events, AllocatorSettings(max_split_size_bytes=128 * MIB)) == 1.0


def test_max_split_size_changes_reserved_memory_as_in_the_replay() -> None:
    plan = Plan.parse("bf16-z2-none-mb2x4")
    limited = replace(plan, max_split_size_mib=32)
    before, after = PREDICTOR.predict(plan), PREDICTOR.predict(limited)
    ratio = packing(trace_of(str(plan)), AllocatorSettings(max_split_size_bytes=32 * MIB))
    assert ratio != 1.0
    assert after.allocated == before.allocated
    # The share of live bytes is never tighter than pages alone would be; the rest scales.
    share, live = 1 + PACKINGS["flattened"].share, before.allocated.expected
    rest = before.reserved.expected - share * live
    assert after.reserved.expected == pytest.approx(max(share * ratio, 1.02) * live + rest * ratio)


@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS)
@pytest.mark.parametrize("rest", ["z3-none-mb1x8", "fsdp-none-mb8x1", "ddp-none-mb4x2"])
def test_attention_kernels_are_ordered_by_memory_and_speed(rest: str, checkpointing: Checkpointing) -> None:
    plan = replace(Plan.parse(f"bf16-{rest}"), checkpointing=checkpointing)
    flash, sdpa, eager = (PREDICTOR.predict(replace(plan, attention=each)) for each in Attention)
    assert flash.device.expected <= sdpa.device.expected <= eager.device.expected
    seconds = [each.step_seconds.expected for each in (flash, sdpa, eager)]
    assert seconds == sorted(seconds)
    assert seconds[1] <= seconds[0] * 1.02
