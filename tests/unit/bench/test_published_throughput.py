"""The published throughputs under bench/data: each row parses, and the predictor is unbiased on them."""

from __future__ import annotations

import statistics

from throughput import DATA, read_rows, score, summary

from memtune.memory.formulas.shape import shape_of


def test_the_predictor_is_unbiased_and_as_sure_as_it_says() -> None:
    scored = score(read_rows(DATA))
    assert len(scored) >= 100
    assert abs(statistics.median(one.ratio for one in scored) - 1) < 0.1, summary(scored)
    assert sum(one.is_inside for one in scored) / len(scored) >= 0.95, summary(scored)


def test_a_row_has_the_parameters_that_its_source_counts() -> None:
    rows = {row.id: shape_of(row.workload.model, None) for row in read_rows(DATA)}
    assert rows["mpt-25"].total == 6_658_859_008
    assert rows["mpt-13"].total == 64_862_437_376
