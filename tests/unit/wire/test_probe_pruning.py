"""When a probe may end early: because its plan cannot win, or because its steps are steady."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_jobs import make_job

from memtune.api.status import Status
from memtune.controller.job_knowledge import knowledge_of
from memtune.planning.next_probe import target_of
from memtune.planning.space import BOTH, MEMORY, THROUGHPUT
from memtune.wire.probe_pruning import Pruned, Step, Target, pruned, steady

GIB = 2**30
speeds = st.floats(min_value=0.1, max_value=1e9)
sizes = st.integers(min_value=1, max_value=2**40)
steps = st.lists(st.builds(Step, st.one_of(st.just(0.0), speeds), sizes), max_size=12)
targets = st.builds(Target, st.integers(0, 10**9), st.integers(0, 2**40))


def at(*tokens_per_second: float, device_bytes: int = 0) -> list[Step]:
    return [Step(each, device_bytes) for each in tokens_per_second]


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ([], None),
        (at(600), Pruned.SPEED),  # a single step may have been slowed by half
        (at(700), None),
        (at(900, 905), Pruned.SPEED),
        (at(910, 100), None),  # the best step counts
        (at(0, 0), None),  # tokens unknown
        (at(0, 600), Pruned.SPEED),
        (at(2000, device_bytes=9 * GIB), Pruned.MEMORY),
        (at(2000, device_bytes=8 * GIB), None),
        (at(600, device_bytes=9 * GIB), Pruned.MEMORY),
    ],
)
def test_a_probe_ends_once_its_best_step_or_its_peak_rules_its_plan_out(seen: list[Step], why: Pruned | None) -> None:
    assert pruned(Target(1000, 8 * GIB), seen) is why


@given(steps)
def test_without_a_target_no_probe_ends_early(seen: list[Step]) -> None:
    assert pruned(Target(), seen) is None


@given(targets, speeds, st.lists(st.floats(0.5, 1.1), min_size=2, max_size=12))
def test_a_plan_that_wins_is_not_pruned_while_one_step_shows_nearly_its_speed(
    target: Target, advantage: float, noise: Sequence[float]
) -> None:
    speed = target.tokens_per_second + advantage
    seen = [Step(speed * each, 0) for each in [1 / 1.1, *noise]]
    assert pruned(target, seen) is None


@given(targets, steps)
def test_the_order_of_steps_does_not_matter(target: Target, seen: list[Step]) -> None:
    assert pruned(target, seen[::-1]) == pruned(target, seen)


@given(targets, steps, speeds, sizes)
def test_memory_that_was_taken_stays_taken(target: Target, seen: list[Step], speed: float, size: int) -> None:
    if pruned(target, seen) is Pruned.MEMORY:
        assert pruned(target, [*seen, Step(speed, size)]) is Pruned.MEMORY


@given(targets, steps, st.integers(0, 10**9))
def test_a_slower_target_prunes_no_more_than_a_faster_one(target: Target, seen: list[Step], faster: int) -> None:
    above = target._replace(tokens_per_second=target.tokens_per_second + faster)
    if pruned(above, seen) is None:
        assert pruned(target, seen) is None


def test_the_target_depends_on_the_objective() -> None:
    knowledge = replace(knowledge_of(make_job(), Status(), None), headroom=0.25)
    most = knowledge.usable_bytes * 3 // 4
    found = {
        each: target_of(replace(knowledge, objective=each), 1234.5, 5 * GIB) for each in (THROUGHPUT, MEMORY, BOTH)
    }
    assert found == {THROUGHPUT: Target(1234, most), MEMORY: Target(0, 5 * GIB), BOTH: Target(0, most)}
    assert target_of(replace(knowledge, objective=MEMORY), 1.0, knowledge.usable_bytes) == Target(0, most)


def lasting(*seconds: float, device_bytes: int = 1) -> list[Step]:
    return [Step(0.0, device_bytes, each) for each in seconds]


@pytest.mark.parametrize(
    ("seen", "is_steady"),
    [
        ([], False),
        (lasting(1.0), False),
        (lasting(1.0, 1.02), True),
        (lasting(1.02, 1.0), True),
        (lasting(1.0, 1.021), False),
        (lasting(4.0, 1.0), False),  # late compilation
        (lasting(4.0, 1.0, 1.01), True),
        (lasting(1.0, 1.0, 1.5), False),  # they count in their order
        (lasting(1.0) + lasting(1.0, device_bytes=2), False),  # a longer batch may follow
        (lasting(0.0, 0.0), True),  # nothing is computed
        (lasting(1.0, 0.0), False),  # the last one evaluated, too
    ],
)
def test_steps_are_steady_once_two_in_a_row_take_the_same(seen: list[Step], is_steady: bool) -> None:
    assert steady(seen) is is_steady
