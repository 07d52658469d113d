"""How much of the differences between plans a knob explains, with numbers checked by hand."""

from __future__ import annotations

import pytest

from memtune.plans.plan import Plan
from memtune_cli.views.candidates import Group, KnownPlan
from memtune_cli.views.importance import explained, importances


def known_plan(plan: str, device_bytes: float, tokens_per_second: float) -> KnownPlan:
    return KnownPlan(Plan.parse(plan), device_bytes, tokens_per_second, Group.FITS)


@pytest.mark.parametrize(
    ("choices", "values", "share"),
    [
        ("aabb", [1.0, 1.0, 3.0, 3.0], 1.0),
        ("abab", [1.0, 1.0, 3.0, 3.0], 0.0),
        # Means 2 and 4 around 3: 4 x 1, of 4 + 0 + 0 + 4 = 8.
        ("aabb", [1.0, 3.0, 3.0, 5.0], 0.5),
        ("aabb", [2.0, 2.0, 2.0, 2.0], 0.0),
    ],
)
def test_a_choice_explains_the_variance_between_its_means(choices: str, values: list[float], share: float) -> None:
    assert explained(choices, values) == pytest.approx(share)


def test_the_knob_that_matters_most_for_memory_comes_first() -> None:
    plans = [
        known_plan("bf16-z1-none-mb1x8", 10.0, 100.0),
        known_plan("bf16-z1-full-mb1x8", 9.0, 50.0),
        known_plan("bf16-z3-none-mb1x8", 4.0, 100.0),
        known_plan("bf16-z3-full-mb1x8", 3.0, 50.0),
    ]
    # Memory: 6 between the shardings, 1 between the ways of checkpointing, so 9 and 0.25 of 9.25.
    sharding, checkpointing = importances(plans)
    assert (sharding.knob, sharding.choices) == ("sharding", ("z1", "z3"))
    assert (checkpointing.knob, checkpointing.choices) == ("checkpointing", ("full", "none"))
    assert (sharding.memory, checkpointing.memory) == pytest.approx((9 / 9.25, 0.25 / 9.25))
    assert (sharding.speed, checkpointing.speed) == pytest.approx((0.0, 1.0))


def test_a_job_of_one_plan_leaves_no_knob_open() -> None:
    assert importances([known_plan("bf16-z1-none-mb1x8", 10.0, 100.0)]) == []
