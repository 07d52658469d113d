"""The width of a job of a new source, and how much each known source counts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import job_width
import pytest
from accuracy_cells import Cells
from accuracy_rows import read_row

from memtune.memory.constants import DEFAULT_CONSTANTS, JOB_WIDTH
from memtune.memory.prediction import BOUND, Interval

LINE = {
    "id": "one", "model": "llama2-7b", "params_b": "6.74", "hidden": "4096", "layers": "32", "heads": "32",
    "vocab": "32000", "metric": "allocated", "peak_bytes": "60e9", "framework": "none",
}  # fmt: skip
PLAIN = replace(DEFAULT_CONSTANTS, job_width=0.0)


def miss(source: str, ratio: float, is_unseen: bool = True, **cells: str) -> job_width.Miss:
    row = read_row(Cells({**LINE, "source": f"owner/{source} x@1", **cells}))
    expected = row.peak_bytes / ratio
    return job_width.Miss(row, PLAIN, Interval(expected, expected, expected), is_unseen)


def test_a_source_whose_rows_all_agree_counts_once_however_many_it_has() -> None:
    rows = [*[miss("a", math.exp(0.1))] * 9, miss("b", math.exp(0.3))]
    assert job_width.spread(rows) == pytest.approx(math.sqrt(0.05))


def test_a_source_of_few_rows_counts_less_by_hand() -> None:
    # Between the sources' means of 0.2 and 0.6 a mean square of 2 x 0.2^2 + 2 x 0.2^2, within them of 4 x 0.1^2 / 2.
    rows = [miss(source, math.exp(residual)) for source, residual in (("a", 0.1), ("a", 0.3), ("b", 0.5), ("b", 0.7))]
    sources = list(job_width.by_source(rows).values())
    part = (0.16 - 0.02) / (0.16 + 0.02)
    assert job_width.shared(sources) == pytest.approx(part)
    # With the variance of normal residuals as unit, their square has one of 2, and a mean over n rows of a source
    # 2 x (part^2 + (1 - part^2) / n).
    assert job_width.weights(sources) == pytest.approx([1 / (part**2 + (1 - part**2) / 2)] * 2)
    assert job_width.spread([rows[0], rows[2]]) == pytest.approx(math.sqrt((0.1**2 + 0.5**2) / 2))


def test_fewer_sources_widen_the_bound_of_a_deviation() -> None:
    # Student's 97.5% quantiles: 2.101 with 18 degrees of freedom, 1.960 with all.
    for sources, quantile in ((19, 2.101), (10_000, 1.960)):
        rows = [miss(f"s{number}", math.exp(0.1)) for number in range(sources)]
        assert math.log1p(job_width.width(rows)) == pytest.approx(quantile * 0.1, abs=0.001)


def test_deviations_explained_by_components_add_no_job_width() -> None:
    row = miss("a", math.exp(0.2))
    upper = row.interval.expected * math.exp(0.2 * BOUND)
    assert job_width.spread([row._replace(interval=row.interval._replace(upper=upper))]) == pytest.approx(0, abs=1e-6)


def test_a_row_is_held_against_the_width_of_other_sources_alone() -> None:
    rows = [miss("a", 1.0), miss("b", 1.0), miss("c", 2.0)]
    held = {each.miss.row.source: each.interval.width for each in job_width.held_out(rows, 2.0)}
    assert held["c"] < held["a"]
    assert held["a"] == held["b"]


def test_the_script_writes_the_width_to_the_constants(tmp_path: Path) -> None:
    copy = tmp_path / "constants.py"
    copy.write_text(job_width.CONSTANTS.read_text())
    job_width.write(0.125, copy)
    assert "\nJOB_WIDTH = 0.125\n" in copy.read_text()
    job_width.write(JOB_WIDTH, copy)
    assert copy.read_text() == job_width.CONSTANTS.read_text()


def test_rows_that_no_plan_describes_are_left_out() -> None:
    split = read_row(Cells({**LINE, "source": "owner/a x@1", "tp": "2"}))
    assert not job_width._is_nameable(split)
    assert job_width._is_nameable(miss("a", 1.0).row)
