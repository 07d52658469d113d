"""Two objectives: the front, its hypervolume, and what another point may add, with numbers by hand."""

from __future__ import annotations

from random import Random

import pytest

from memtune.memory.prediction import Interval
from memtune.planning.pareto import Point, covered, expected_excess, expected_gain, front, is_on_front

SLOW_SMALL, MIDDLE, FAST_LARGE, BEATEN = Point(1.0, 3.0), Point(2.0, 2.0), Point(3.0, 1.0), Point(1.5, 1.0)


def sure(value: float) -> Interval:
    return Interval(value, value, value)


def test_the_front_leaves_out_dominated_points() -> None:
    assert front([FAST_LARGE, BEATEN, SLOW_SMALL, MIDDLE, MIDDLE]) == (SLOW_SMALL, MIDDLE, FAST_LARGE)
    assert not is_on_front(BEATEN, [MIDDLE])
    assert not is_on_front(Point(2.0, 1.0), [MIDDLE])
    assert is_on_front(MIDDLE, [MIDDLE])
    assert front([]) == ()


def test_the_hypervolume_is_the_area_below_the_stairs() -> None:
    # 1 x 3 + 1 x 2 + 1 x 1.
    assert covered([SLOW_SMALL, MIDDLE, FAST_LARGE, BEATEN]) == pytest.approx(6.0)
    assert covered([]) == 0.0


@pytest.mark.parametrize(
    ("point", "gain"),
    [
        (Point(2.0, 2.0), 0.0),
        (BEATEN, 0.0),
        (Point(2.5, 2.5), 1.25),  # 1.0 x 0.5 above the middle's stair, 0.5 x 1.5 right of it
        (Point(4.0, 4.0), 10.0),  # 16 less the 6 that are covered
        (Point(0.5, 4.0), 0.5),
        (Point(4.0, 0.5), 0.5),
    ],
)
def test_a_point_that_is_certain_gains_the_area_that_it_adds(point: Point, gain: float) -> None:
    points = [SLOW_SMALL, MIDDLE, FAST_LARGE]
    assert covered([*points, point]) - covered(points) == pytest.approx(gain)
    assert expected_gain(points, sure(point.speed), sure(point.free)) == pytest.approx(gain, abs=1e-6)


def test_before_the_first_point_all_that_is_expected_is_gained() -> None:
    assert expected_gain([], sure(3.0), sure(2.0)) == pytest.approx(6.0)


def test_an_uncertain_point_gains_the_average_of_its_draws() -> None:
    points, random = [SLOW_SMALL, MIDDLE, FAST_LARGE], Random(1)
    speed, free = Interval(2.0 - 1.645, 2.0, 2.0 + 1.645), Interval(2.0 - 0.8225, 2.0, 2.0 + 0.8225)
    drawn = [Point(max(random.gauss(2.0, 1.0), 0.0), max(random.gauss(2.0, 0.5), 0.0)) for _ in range(20_000)]
    average = sum(covered([*points, point]) - covered(points) for point in drawn) / len(drawn)
    assert expected_gain(points, speed, free) == pytest.approx(average, rel=0.05)


def test_improvement_at_the_bound_is_the_spread_over_the_root_of_two_pi() -> None:
    assert expected_excess(Interval(90 - 16.45, 90, 90 + 16.45), 90) == pytest.approx(3.989, abs=1e-3)
