"""Which plan is probed next, with numbers that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memtune.memory.prediction import Interval, Prediction
from memtune.planning.next_probe import (
    ProbeChoice,
    Trial,
    expected_improvement,
    probability_of_fitting,
    promise,
    reason_to_stop,
)
from memtune.planning.space import BOTH, MEMORY, Candidate
from memtune.plans.plan import Plan
from memtune.units import GIB


def candidate(
    plan: str, tokens: float, device_gib: float, spread_gib: float = 1.645, speed_spread: float = 16.45
) -> Candidate:
    """A candidate whose standard deviations are 1 GiB and 10 tokens per second, unless said otherwise."""
    device = Interval((device_gib - spread_gib) * GIB, device_gib * GIB, (device_gib + spread_gib) * GIB)
    rate = Interval(tokens - speed_spread, tokens, tokens + speed_spread)
    one = Interval(1.0, 1.0, 1.0)
    return Candidate(
        Plan.parse(plan), Prediction("forward", dict, tuple, device, device, device, device, device, device, one, rate)
    )


SLOW_SURE = candidate("bf16-z1-full-mb1x8", 90.0, 2.0)
QUICK_CLOSE = candidate("bf16-z1-none-mb4x2", 110.0, 9.0)
QUICK_LARGE = candidate("bf16-z1-none-mb8x1", 120.0, 14.0)
ASKED = ProbeChoice((SLOW_SURE, QUICK_CLOSE, QUICK_LARGE), (), usable_bytes=10 * GIB, headroom=0.1)


@pytest.mark.parametrize(("device_gib", "chance"), [(9.0, 0.5), (8.0, 0.8413), (10.0, 0.1587), (2.0, 1.0)])
def test_the_chance_of_fitting_is_that_of_a_normal_distribution(device_gib: float, chance: float) -> None:
    assert probability_of_fitting(ASKED, candidate("bf16-z1-none-mb1x8", 1.0, device_gib)) == pytest.approx(
        chance, abs=1e-4
    )


def test_improvement_at_the_incumbent_is_the_spread_over_the_root_of_two_pi() -> None:
    asked = replace(ASKED, incumbent=90.0)
    # 10 x 1 / sqrt(2 x pi), and the plan fits for sure.
    assert promise(asked, SLOW_SURE) == pytest.approx(3.989, abs=1e-3)


def test_a_quicker_plan_that_hardly_fits_is_not_worth_its_risk() -> None:
    # Without an incumbent: 90 x 1.0 against 110 x 0.5 and 120 x 0.0.
    assert expected_improvement(ASKED) == SLOW_SURE.plan


def test_with_an_incumbent_only_more_counts() -> None:
    assert expected_improvement(replace(ASKED, incumbent=100.0)) == QUICK_CLOSE.plan


def test_for_memory_the_smallest_plan_promises_most() -> None:
    assert expected_improvement(replace(ASKED, objective=MEMORY)) == SLOW_SURE.plan


def test_after_an_out_of_memory_the_next_divisor_down_follows_where_it_is_likely_to_fit() -> None:
    died = Trial(1, Plan.parse("bf16-z1-none-mb8x1"), fits=False, died=True)
    close = candidate("bf16-z1-none-mb4x2", 50.0, 8.5)
    asked = replace(ASKED, candidates=(SLOW_SURE, close), trials=(died,))
    assert expected_improvement(asked) == close.plan
    assert expected_improvement(replace(asked, headroom=0.2)) == SLOW_SURE.plan
    assert expected_improvement(replace(asked, trials=(replace(died, died=False),))) == SLOW_SURE.plan


def test_nothing_is_proposed_where_nothing_is_left() -> None:
    assert expected_improvement(replace(ASKED, candidates=())) is None
    assert reason_to_stop(replace(ASKED, candidates=())) == "every plan that can fit was probed"


def test_the_search_goes_on_until_something_fits() -> None:
    trials = tuple(Trial(number, SLOW_SURE.plan, fits=False, died=True) for number in range(1, 6))
    assert reason_to_stop(replace(ASKED, trials=trials)) is None


@pytest.mark.parametrize(
    ("scores", "is_over"),
    [((100, 101, 102, 102.9), True), ((100, 101, 102, 104), True), ((100, 101, 105, 106), False), ((100, 102), False)],
)
def test_three_probes_in_a_row_that_gain_less_than_3_percent_end_the_search(
    scores: tuple[float, ...], is_over: bool
) -> None:
    trials = tuple(Trial(number, SLOW_SURE.plan, fits=True, score=score) for number, score in enumerate(scores, 1))
    found = reason_to_stop(replace(ASKED, trials=trials, incumbent=100.0))
    assert (found is not None) is is_over


def test_the_search_is_over_when_no_plan_is_expected_to_gain_enough() -> None:
    # 10 x 0.0184 for the plan of 110 x 0.5: 0.092, against 0.128 and 0.1285.
    assert reason_to_stop(replace(ASKED, incumbent=125.0)) is None
    assert (
        reason_to_stop(replace(ASKED, incumbent=135.0))
        == "no plan left is expected to gain 0.1% over the best one measured"
    )


BOTH_ASKED = replace(ASKED, objective=BOTH)


def told(number: int, plan: Plan, tokens: float, free_gib: float) -> Trial:
    return Trial(number, plan, fits=True, score=tokens, free_bytes=free_gib * GIB)


def test_with_both_objectives_the_first_probe_is_a_compromise() -> None:
    quick, small = candidate("bf16-z1-none-mb4x2", 110.0, 8.5), candidate("bf16-z3-full-mb1x8", 20.0, 1.0)
    middle = candidate("bf16-z2-none-mb1x8", 90.0, 4.0)
    asked = replace(BOTH_ASKED, candidates=(quick, middle, small))
    # Tokens times free GiB: 110 x 1.5, 90 x 6 and 20 x 9.
    assert expected_improvement(asked) == middle.plan
    # Measured, it leaves the ends of the front.
    trials = (told(1, middle.plan, 90.0, 6.0),)
    after = replace(asked, candidates=(quick, small), trials=trials, incumbent=90.0)
    assert promise(after, small) > 0
    assert promise(after, quick) > 0


def test_with_both_objectives_a_plan_that_is_worse_in_both_ends_the_search() -> None:
    # The plan is expected at 90 tokens a second and 8 GiB free, give or take 10 and 1.
    trials = (told(1, QUICK_CLOSE.plan, 100.0, 8.0),)
    asked = replace(BOTH_ASKED, candidates=(SLOW_SURE,), trials=trials, incumbent=100.0)
    assert reason_to_stop(asked) is None
    better = (told(1, QUICK_CLOSE.plan, 120.0, 9.97),)
    assert reason_to_stop(replace(asked, trials=better)) == "no plan left is expected to gain 0.1% over those measured"


def test_with_both_objectives_a_smaller_plan_is_a_gain() -> None:
    free = (1.0, 2.0, 3.0, 4.0)
    trials = tuple(told(number, SLOW_SURE.plan, 100.0 - number, gib) for number, gib in enumerate(free, 1))
    assert reason_to_stop(replace(BOTH_ASKED, trials=trials, incumbent=99.0)) is None
    single = replace(ASKED, trials=trials, incumbent=99.0)
    assert reason_to_stop(single) == "3 probes in a row gained less than 3%"
