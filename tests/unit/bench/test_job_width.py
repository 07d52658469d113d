"""The width of a job of a new source, from first scores."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import job_width
import pytest
from accuracy_cells import Cells
from accuracy_fit import predicted
from accuracy_rows import read_row
from first_scores import FirstScore

from memtune.memory.constants import DEFAULT_CONSTANTS, JOB_WIDTH

# Nothing is unknown, so that the components are narrow.
LINE = {
    "id": "one", "model": "llama2-7b", "params_b": "6.74", "hidden": "4096", "layers": "32", "heads": "32",
    "ffn": "11008", "vocab": "32000", "seq_len": "2048", "micro_batch": "1", "weight_dtype": "bf16",
    "compute_dtype": "bf16", "optimizer_name": "adamw", "state_dtype": "bf16", "checkpointing": "full",
    "attention_kind": "flash", "framework": "none", "metric": "allocated", "peak_bytes": "60e9",
    "notes": "grad accum 4",
}  # fmt: skip


def miss(source: str, ratio: float, **cells: str) -> job_width.Miss:
    """A row that took so many times its first prediction, of 10 GB."""
    row = read_row(Cells({**LINE, "source": f"owner/{source} x@1", **cells}))
    score = FirstScore(source, row.id, row.metric, round(ratio * 10e9), 1, 10_000_000_000, 1, "f", "2026-01-01")
    return job_width.Miss(row, score)


def test_what_a_row_needs_is_what_its_components_leave() -> None:
    one = miss("a", 1.5)
    plain = predicted(one.row, replace(DEFAULT_CONSTANTS, job_width=0.0))
    components = plain.upper / plain.expected - 1
    assert one.needed == pytest.approx(math.sqrt(0.5**2 - components**2), abs=0.001)
    assert not one.is_above(one.needed)
    assert one.is_above(one.needed - 0.001)


def test_a_row_within_its_components_needs_no_width() -> None:
    assert miss("a", 1.01).needed == 0


def test_a_width_of_a_job_is_upwards_only() -> None:
    one = miss("a", 1.0)
    assert one.with_width(0.3).lower == pytest.approx(one.with_width(0.1).lower)
    assert one.with_width(0.3).upper > one.with_width(0.1).upper


def test_the_width_is_what_a_share_of_the_rows_needs() -> None:
    rows = [miss("a", 1 + number / 20) for number in range(20)]
    found = job_width.width(rows)
    assert [each.is_above(found) for each in rows] == [False] * 19 + [True]
    # Rounded upwards, to a thousandth.
    assert rows[18].needed <= found < rows[18].needed + 0.001


def test_rows_that_no_plan_describes_are_left_out() -> None:
    split = miss("a", 3.0, tp="2")
    assert not split.is_nameable
    assert job_width.width([miss("a", 1.0), split]) == 0


def test_a_row_is_held_against_the_width_of_other_sources_alone() -> None:
    rows = [miss("a", 1.0), miss("b", 1.0), miss("c", 2.0)]
    held = {each.miss.row.source: each for each in job_width.held_out(rows)}
    assert held["c"].is_above
    assert held["c"].interval.width < held["a"].interval.width == held["b"].interval.width


def test_the_shared_part_of_a_variance_by_hand() -> None:
    # Between the groups' means of 0.2 and 0.6 a mean square of 2 x 0.2^2 + 2 x 0.2^2, within them of 4 x 0.1^2 / 2.
    assert job_width.shared([[0.1, 0.3], [0.5, 0.7]]) == pytest.approx((0.16 - 0.02) / (0.16 + 0.02))
    assert job_width.shared([[0.1, 0.1], [0.5, 0.5]]) == 1


def test_rows_of_one_source_tell_less_than_those_of_many() -> None:
    many = [miss(f"s{number}", 1.0) for number in range(6)]
    two = [miss(source, 1.0) for source in ("a", "a", "a", "b", "b", "b")]
    assert job_width.independent(many, 0.5) == 6
    # Of three rows that share a half, each adds 1 / (1 + 2 x 0.5).
    assert job_width.independent(two, 0.5) == pytest.approx(3)
    assert job_width.independent(two, 0.0) == 6


def test_kinds_are_apart_by_what_chance_does_not_explain() -> None:
    def kind(name: str, above: int) -> list[job_width.Held]:
        rows = [miss(f"{name}{number}", 1.5 if number < above else 1.0) for number in range(10)]
        return [job_width.Held(each, each.with_width(0.0)) for each in rows]

    kinds = [kind("a", 1), kind("b", 9)]
    assert job_width.by_chance(kinds[0], 0.5, 1.0) == pytest.approx(math.sqrt(0.25 / 10))
    # Rates of 0.1 and 0.9 have a variance of 0.32, and chance explains 0.025 of it.
    assert job_width.apart(kinds, 1.0) == pytest.approx(math.sqrt(0.32 - 0.025))
    assert job_width.apart([kind("a", 5), kind("b", 5)], 1.0) == 0


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("full training, whole states", {}),
        ("full training, whole states", {"framework": "ddp", "n_gpus": "8"}),
        ("adapter, quantized base", {"lora_rank": "8", "lora_targets": "q,v", "base_quant": "nf4"}),
        ("adapter, other base", {"lora_rank": "8", "lora_targets": "q,v"}),
        ("states, gradients or weights in shards", {"framework": "fsdp", "zero_stage": "3", "shard_world": "8"}),
        ("states, gradients or weights in shards", {"framework": "deepspeed", "zero_stage": "1", "shard_world": "8"}),
    ],
)
def test_every_row_is_of_one_kind(kind: str, cells: dict[str, str]) -> None:
    row = miss("a", 1.0, **cells).row
    assert [name for name, is_kind in job_width.KINDS.items() if is_kind(row)] == [kind]


def test_the_script_writes_the_width_to_the_constants(tmp_path: Path) -> None:
    copy = tmp_path / "constants.py"
    copy.write_text(job_width.CONSTANTS.read_text())
    job_width.write(0.125, copy)
    assert "\nJOB_WIDTH = 0.125\n" in copy.read_text()
    job_width.write(JOB_WIDTH, copy)
    assert copy.read_text() == job_width.CONSTANTS.read_text()
