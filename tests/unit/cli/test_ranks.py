"""Aggregating pods' metrics: each rank's memory, and the total speed over time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from memtune_cli.views.ranks import Ranks, Reading, readings

TEXT = """\
# HELP memtune_hbm_reserved_bytes Bytes that the allocator has taken from the device
# TYPE memtune_hbm_reserved_bytes gauge
memtune_hbm_reserved_bytes{device="virtual",rank="0"} 400.0
memtune_hbm_reserved_bytes{device="virtual",rank="1"} 300.0
memtune_hbm_non_torch_bytes{device="virtual",rank="0"} 70.0
memtune_hbm_total_bytes{device="virtual",rank="0"} 1000.0
memtune_hbm_peak_reserved_bytes{device="virtual",rank="0"} 600.0
memtune_hbm_peak_fragmentation_ratio{device="virtual",rank="0"} 0.15
memtune_allocator_retries_total{device="virtual",rank="0"} 2.0
memtune_step_seconds_bucket{device="virtual",le="+Inf",rank="0"} 4.0
memtune_step_seconds_count{device="virtual",rank="0"} 4.0
memtune_plan_info{device="virtual",plan="fp32-ddp-none-mb1x1",rank="0"} 1.0
"""


def reading(rank: int, **values: float) -> Reading:
    return Reading(rank, dict(values))


def test_metrics_become_a_reading_for_each_rank() -> None:
    first, second = readings(TEXT)
    assert (first.rank, first.used_bytes, first.peak_bytes, first.total_bytes) == (0, 470, 670, 1000)
    assert (first.fragmentation, first.retries, first.steps) == (0.15, 2, 4)
    assert (second.rank, second.used_bytes, second.fragmentation, second.steps) == (1, 300, None, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        'memtune_x{rank="0"} NaN\nmemtune_x{rank="0"} +Inf\nmemtune_x{rank="0"} odd',
        'memtune_x{rank="-1"} 1\nmemtune_x{rank="%s"} 1\nmemtune_x{device="a"} 1' % ("9" * 5000),
        'memtune_x{le="1",rank="0"} 1',
    ],
)
def test_metrics_of_other_programs_are_ignored(text: str) -> None:
    assert readings(text) == []


def look(tokens: float, steps: float, seconds: float) -> Mapping[str, float]:
    return {"tokens_total": tokens, "step_seconds_count": steps, "step_seconds_sum": seconds}


def test_speed_is_that_of_the_last_minute() -> None:
    ranks = Ranks("run")
    assert (ranks.steps, ranks.tokens_per_second, ranks.step_seconds) == (0, None, None)
    ranks.seen(0, [reading(0, **look(1000, 10, 50))])
    assert (ranks.tokens_per_second, ranks.step_seconds) == (None, 5.0), "before the second look all steps tell"
    ranks.seen(10, [reading(1, **look(500, 12, 54)), reading(0, **look(1000, 11, 53))])
    assert (ranks.steps, ranks.tokens_per_second, ranks.step_seconds) == (12, 50.0, 2.0)
    for second in (50, 75, 100):
        ranks.seen(second, [reading(0, **look(1500 + second, 12, 54))])
    assert ranks.tokens_per_second == 1.0, "what is older than a minute counts no more"
    assert ranks.step_seconds == 4.5, "without a new step it is that of all"


def test_ranks_that_started_again_have_no_speed_yet() -> None:
    ranks = Ranks("run")
    ranks.seen(0, [reading(0, **look(1000, 10, 50))])
    ranks.seen(10, [reading(0, **look(0, 0, 0))])
    assert (ranks.tokens_per_second, ranks.step_seconds) == (None, None)
    ranks.seen(20, [])
    assert ranks.latest == ()
