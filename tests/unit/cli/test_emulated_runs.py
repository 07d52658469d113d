"""How many emulated runs are made at a time, and in which order they are told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune_cli.input.emulated_runs import Room, run_all

_PLAN, _OTHER = Plan.parse("bf16-z3-full-mb4x2-sdpa"), Plan.parse("bf16-z1-none-mb8x1-sdpa")
_OFFLOADED = Plan.parse("bf16-z3-full-mb4x2-sdpa-oopt")


def room(predicted: float, *available: float, most: int = 2) -> Room:
    """Room before any run, and at later looks."""
    left = [int(each * GIB) for each in available]
    return Room(lambda _: int(predicted * GIB), most, lambda: left.pop(0) if len(left) > 1 else left[0])


@pytest.mark.parametrize(
    ("predicted", "before", "now", "is_left"),
    [
        (4, 9, 5, True),  # 4 + 4 + 1 of 9
        (4, 8.9, 8.9, False),  # the first will grow yet
        (4, 20, 4.9, False),  # another program has begun
    ],
)
def test_a_second_run_begins_where_both_have_their_memory(
    predicted: float, before: float, now: float, is_left: bool
) -> None:
    assert room(predicted, before, now).is_left(_PLAN, [_OTHER]) is is_left


def test_one_run_alone_always_begins() -> None:
    assert room(64, 1).is_left(_PLAN, [])


def test_no_more_run_than_there_are_processors_or_are_asked_for() -> None:
    assert room(1, 64, most=3).is_left(_PLAN, [_PLAN] * 2)
    assert not room(1, 64, most=3).is_left(_PLAN, [_PLAN] * 3)


def test_the_largest_measured_run_replaces_the_prediction() -> None:
    # 8 GiB: two of 3 GiB and a margin, but not two of 5 or of 4.
    found = room(5, 8)
    assert not found.is_left(_PLAN, [_PLAN])
    found.took(_OTHER, 3 * GIB)
    found.took(_PLAN, 2 * GIB)
    assert found.is_left(_PLAN, [_PLAN])
    # One that offloads needs the 5 that are predicted.
    assert not found.is_left(_OFFLOADED, [_PLAN])
    found.took(_PLAN, 4 * GIB)
    assert not found.is_left(_PLAN, [_PLAN])


class Run:
    """In place of a run: it speaks, and ends when it is told to."""

    def __init__(self, plan: Plan, lines: list[str], ends: Callable[[], Any]) -> None:
        self.plan, self.host_bytes = plan, GIB
        self._lines, self._ends = lines, ends
        self.was_killed = threading.Event()

    def ended(self, time_limit: int, say: Callable[[str], None]) -> dict[str, Any]:
        for line in self._lines:
            say(line)
        self._ends()
        return {"plan": str(self.plan), "limit": time_limit}

    def kill(self) -> None:
        self.was_killed.set()


def test_results_and_output_are_in_the_order_of_the_plans(capsys: pytest.CaptureFixture[str]) -> None:
    plans = [_PLAN, _OTHER, Plan.parse("bf16-z2-none-mb8x1-sdpa")]
    others_ended, begun = threading.Event(), []

    def begin(number: int, plan: Plan) -> Any:
        begun.append(number)
        if number == 3:
            return Run(plan, ["third\n"], others_ended.set)
        lines = [f"{number}, line {line}\n" for line in (1, 2)]
        return Run(plan, lines, (lambda: others_ended.wait(20)) if number == 1 else (lambda: None))

    results = run_all(plans, begin, room(1, 64), 7)
    assert [each["plan"] for each in results] == [str(plan) for plan in plans]
    assert {each["limit"] for each in results} == {7}
    assert begun == [1, 2, 3]
    assert others_ended.is_set()  # the third ended beside the first
    assert capsys.readouterr().err == "1, line 1\n1, line 2\n2, line 1\n2, line 2\nthird\n"


def test_a_run_that_fails_to_begin_ends_those_that_have_begun() -> None:
    runs: list[Run] = []

    def begin(number: int, plan: Plan) -> Any:
        if number == 2:
            raise OSError("no file descriptor is left")
        runs.append(Run(plan, [], lambda: runs[0].was_killed.wait(20)))
        return runs[0]

    with pytest.raises(OSError, match="descriptor"):
        run_all([_PLAN, _OTHER], begin, room(1, 64), 7)
    assert runs[0].was_killed.is_set()
