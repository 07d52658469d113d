"""The search benchmark: its tables have cliffs, its methods keep their order."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest
from search_methods import Hunt, deepspeed_order, grid_order, memtune, state_of
from search_tables import CASES, HEADROOM, Table, table_of
from step_times import durations, recordings

from memtune.plans.knobs import NO_CHECKPOINTING

SMALL = next(case.workload for case in CASES if case.size == "1B")


@pytest.fixture(scope="module")
def table() -> Table:
    return table_of(SMALL, Random("unit"))


def test_equal_seeds_give_equal_tables(table: Table) -> None:
    again, other = table_of(SMALL, Random("unit")), table_of(SMALL, Random("other"))
    assert [row.device_bytes for row in table.rows.values()] == [row.device_bytes for row in again.rows.values()]
    assert [row.device_bytes for row in table.rows.values()] != [row.device_bytes for row in other.rows.values()]


def test_without_reach_the_truth_is_the_prediction() -> None:
    exact = table_of(SMALL, Random(1), reach=0.0)
    model = exact.knowledge(())
    for plan, row in exact.rows.items():
        prediction = model.predict(plan)
        assert row.device_bytes == prediction.device.expected
        assert row.tokens_per_second == prediction.tokens_per_second.expected


def test_the_best_plan_fits_and_no_other_is_faster(table: Table) -> None:
    assert table.fits(table.best)
    assert table.is_good(table.best)
    assert table.share(table.best) == 1.0
    assert all(table.share(plan) <= 1.0 for plan in table.rows if table.fits(plan))


def test_a_probe_dies_exactly_above_the_cliff(table: Table) -> None:
    usable_bytes = SMALL.gpu.usable_bytes
    for plan, row in table.rows.items():
        outcome = table.probe(plan, Random(0))
        assert outcome.died == (row.device_bytes > usable_bytes)
        if outcome.died:
            assert usable_bytes <= outcome.demanded_bytes <= row.device_bytes
            assert not outcome.fits
        else:
            assert outcome.fits == (outcome.device_bytes <= usable_bytes * (1 - HEADROOM))
            assert outcome.tokens_per_second == pytest.approx(row.tokens_per_second, rel=0.1)


def test_a_search_ends_with_a_good_plan_or_its_budget(table: Table) -> None:
    hunt = Hunt(table, Random(0))
    hunt.probe(table.best)
    assert hunt.found
    assert hunt.is_over
    assert hunt.share == 1.0
    blind = Hunt(table, Random(0), blind=True, most=2)
    blind.probe(table.best)
    assert not blind.is_over
    blind.probe(table.best)
    assert blind.is_over


def test_memtune_probes_new_plans_only_and_keeps_its_budget(table: Table) -> None:
    hunt = Hunt(table, Random(0), blind=True)
    memtune(hunt)
    assert 1 <= len(hunt.plans) == len(set(hunt.plans)) <= 8
    question = state_of(hunt).choice
    assert not {candidate.plan for candidate in question.candidates} & set(hunt.plans)
    assert question.incumbent == max((o.tokens_per_second for o in hunt.outcomes if o.fits), default=0.0)


def test_grid_goes_through_all_in_order(table: Table) -> None:
    hunt = Hunt(table, Random(0), blind=True, most=len(table.rows))
    grid_order(hunt)
    assert tuple(hunt.plans) == table.possible


def test_deepspeed_goes_up_the_stages_and_ends_a_sweep_when_memory_does() -> None:
    roomy = table_of(CASES[0].workload, Random(3), reach=0.0)
    assert roomy.best.checkpointing == NO_CHECKPOINTING
    hunt = Hunt(roomy, Random(0), blind=True, most=100)
    deepspeed_order(hunt)
    keys = [(plan.sharding.zero_stage, plan.micro_batch) for plan in hunt.plans]
    assert keys == sorted(keys)
    assert {plan.sharding.backend for plan in hunt.plans} == {"deepspeed"}
    assert all(
        not outcome.died
        for outcome, (stage, _), (later, _) in zip(hunt.outcomes, keys, keys[1:], strict=False)
        if stage == later
    )


def test_a_probe_that_ends_early_costs_less_and_shows_the_same_memory(table: Table) -> None:
    fits = [plan for plan in table.rows if table.fits(plan)]
    slow = min(fits, key=lambda plan: table.rows[plan].tokens_per_second)
    whole, early = Hunt(table, Random(0), steps=30), Hunt(table, Random(0), steps=30, prunes=True)
    for hunt in (whole, early):
        hunt.probe(table.best)
        hunt.probe(slow)
    steady, beaten = early.outcomes
    assert [outcome.steps for outcome in whole.outcomes] == [30, 30]
    assert 3 <= steady.steps <= 10, "there was nothing to beat, and two steps took the same time"
    assert 2 <= beaten.steps <= steady.steps
    for outcome, shorter in zip(whole.outcomes, early.outcomes, strict=True):
        assert shorter.gpu_seconds < outcome.gpu_seconds
        assert shorter.device_bytes == outcome.device_bytes
        assert shorter.tokens_per_second == pytest.approx(outcome.tokens_per_second, rel=0.05)


def test_steps_last_as_long_as_recorded_ones() -> None:
    assert len(recordings()) == 24
    assert all(len(row) == 50 and median(row) == 1 for row in recordings())
    uneven = next(row for row in recordings() if max(row) > 5)
    assert sum(each > 5 for each in uneven) == 5, "every tenth step"
    made = durations(Random(3), 60)
    assert made[:10] == made[50:], "it begins again behind the last step"
