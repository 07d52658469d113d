"""The widths of jobs of new sources: every source counts once, and few sources are drawn towards all."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import job_widths
import pytest
from accuracy_cells import Cells
from accuracy_rows import read_row

from memtune.memory.constants import DEFAULT_CONSTANTS, JOB_WIDTHS
from memtune.memory.prediction import BOUND, Interval

LINE = {
    "id": "one", "model": "llama2-7b", "params_b": "6.74", "hidden": "4096", "layers": "32", "heads": "32",
    "vocab": "32000", "metric": "allocated", "peak_bytes": "60e9", "framework": "none",
}  # fmt: skip
PLAIN = replace(DEFAULT_CONSTANTS, job_widths={})


def miss(source: str, ratio: float, is_unseen: bool = True, **cells: str) -> job_widths.Miss:
    row = read_row(Cells({**LINE, "source": f"owner/{source} x@1", **cells}))
    expected = row.peak_bytes / ratio
    return job_widths.Miss(row, PLAIN, Interval(expected, expected, expected), is_unseen)


def test_every_source_counts_once_however_many_rows_it_has() -> None:
    rows = [*[miss("a", math.exp(0.1))] * 9, miss("b", math.exp(0.3))]
    # Of the class: (0.01 + 0.09 + 4 x 0.05) / 6.
    assert job_widths.spreads(rows)["whole"] == pytest.approx(math.sqrt(0.05))
    # Of a class without a source: that of all.
    assert job_widths.spreads(rows)["quantized"] == pytest.approx(math.sqrt(0.05))
    assert job_widths.widths(rows, 2.0)["whole"] == round(math.expm1(2 * math.sqrt(0.05)), 2)


def test_what_components_explain_is_no_width_of_the_job() -> None:
    row = miss("a", math.exp(0.2))
    upper = row.interval.expected * math.exp(0.2 * BOUND)
    assert job_widths.spreads([row._replace(interval=row.interval._replace(upper=upper))])["whole"] == pytest.approx(
        0, abs=1e-6
    )


def test_a_row_is_held_against_widths_of_other_sources_alone() -> None:
    rows = [miss("a", 1.0), miss("b", 1.0), miss("c", 2.0)]
    held = {each.miss.row.source: each.interval.width for each in job_widths.held_out(rows, 2.0)}
    assert held["c"] < held["a"]
    assert held["a"] == held["b"]


def test_classes_are_those_of_the_constants_that_the_script_writes(tmp_path: Path) -> None:
    assert tuple(JOB_WIDTHS) == job_widths.CLASSES
    copy = tmp_path / "constants.py"
    copy.write_text(job_widths.CONSTANTS.read_text())
    job_widths.write({"whole": 0.125}, copy)
    assert '= {\n    "whole": 0.12,\n}\n' in copy.read_text()
    job_widths.write(JOB_WIDTHS, copy)
    assert copy.read_text() == job_widths.CONSTANTS.read_text()


def test_what_no_plan_can_name_is_left_out() -> None:
    split = read_row(Cells({**LINE, "source": "owner/a x@1", "tp": "2"}))
    assert not job_widths._is_nameable(split)
    assert job_widths._is_nameable(miss("a", 1.0).row)
