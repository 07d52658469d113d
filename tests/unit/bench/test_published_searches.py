"""The search benchmark's published tables: measured by others, never predicted by MemTune."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from search import OURS, all_of, compared, published, summary
from search_methods import Hunt, composer_halving, deepspeed_order, memtune
from search_published import Published, published_tables
from search_tables import HEADROOM

from memtune.plans.plan import Plan


@pytest.fixture(scope="module")
def tables() -> dict[str, Published]:
    return {each.job: each for each in published_tables()}


def test_every_table_has_a_plan_that_leaves_its_headroom_and_several_to_choose_from(
    tables: dict[str, Published],
) -> None:
    assert len(tables) >= 19
    assert all(len(each.table.rows) >= 3 for each in tables.values())
    assert all(each.table.fits(each.table.best) for each in tables.values())
    # No published plan of this job does.
    assert "llama3-8b full 2" not in tables


def test_rows_match_the_published_tables(tables: dict[str, Published]) -> None:
    table = tables["llama3-8b lora 4"].table
    row = table.rows[Plan.parse("bf16-fsdp-full-mb16x2-fl")]
    assert row.device_bytes == 66_909 * 2**20
    assert row.tokens_per_second == round(3766.092 * 4)
    assert not row.died
    died = table.rows[Plan.parse("bf16-fsdp-full-mb32x1-fl")]
    assert died.died
    tight = Plan.parse("bf16-fsdp-full-mb8x4")
    assert not table.fits(tight), "77.0 of 79.2 GiB leave less than 6%"
    assert table.workload.gpu.usable_bytes * (1 - HEADROOM) < table.rows[tight].device_bytes


def test_an_out_of_memory_probe_does_not_reveal_the_deficit(tables: dict[str, Published]) -> None:
    table = tables["mistral-7b lora 2"].table
    outcome = table.probe(Plan.parse("bf16-fsdp-full-mb32x1"), Random(0))
    assert outcome.died
    assert outcome.demanded_bytes == 0


def test_a_search_chooses_among_published_plans_alone(tables: dict[str, Published]) -> None:
    for each in tables.values():
        hunt = Hunt(each.table, Random(0), blind=True)
        memtune(hunt)
        assert hunt.plans
        assert set(hunt.plans) <= set(each.table.rows)
        assert each.table.fits(hunt.plans[-1]) or hunt.share > 0


def test_composer_halves_the_largest_micro_batch_until_it_has_memory(tables: dict[str, Published]) -> None:
    hunt = Hunt(tables["llama3-8b lora 4"].table, Random(0), blind=True)
    composer_halving(hunt)
    sizes = [plan.micro_batch for plan in hunt.plans]
    assert sizes == [32, 16]
    assert [outcome.died for outcome in hunt.outcomes] == [True, False]


def test_where_no_plan_is_deepspeed_s_ddp_and_fsdp_stand_for_its_stages(tables: dict[str, Published]) -> None:
    hunt = Hunt(tables["llama2-7b qlora 2 3090"].table, Random(0), blind=True)
    deepspeed_order(hunt)
    assert [str(plan.sharding) for plan in hunt.plans] == ["ddp", "fsdp", "fsdp", "fsdp"]
    assert [plan.micro_batch for plan in hunt.plans[1:]] == [1, 4, 10]


def test_memtune_s_figures_are_those_that_were_published() -> None:
    line = summary(OURS, all_of(compared(published(), {OURS: memtune}, 20), OURS))
    root = Path(__file__).parents[3]
    assert line in (root / "bench" / "results" / "search.md").read_text().splitlines()
    assert line in (root / "docs" / "search.md").read_text().splitlines()
