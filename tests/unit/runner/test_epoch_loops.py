"""Where a resumed script begins, told by the variables of its loops."""

from __future__ import annotations

import inspect
import weakref
from pathlib import Path

import pytest

from memtune_runner.integrations.epoch_loops import Beginning, EpochLoops, Variables, loop_variables


class Tensor:
    """Something that must not be kept."""


def test_the_whole_numbers_of_loops_are_found_in_all_callers() -> None:
    def epoch(number: int) -> Variables:
        for _name in ("a", "b"):
            assert number
        return loop_variables(inspect.currentframe())

    for fold in range(3):
        if fold == 1:
            found = epoch(5)
    name = inspect.currentframe().f_code.co_name  # type: ignore[union-attr]  # there is a frame
    assert found[f"{name}.fold"] == 1
    assert not [each for each in found if each.startswith("epoch.")], "a parameter, and names"


def test_looking_at_a_function_keeps_none_of_its_variables_alive() -> None:
    tensor = Tensor()
    for number in range(2):
        assert number < 2
    loop_variables(inspect.currentframe())
    seen = weakref.ref(tensor)
    del tensor
    assert seen() is None


def test_the_locals_of_a_script_stay_unchanged() -> None:
    options = {"rate": 0.1}
    for _number in range(2):
        kept = locals()
    loop_variables(inspect.currentframe())
    assert kept["options"] is options


def passes(loops: EpochLoops, values: range, is_last_whole: bool = True) -> None:
    for value in values:
        variables = {"main.epoch": value, "main.fold": 0}
        loops.trains(variables)
        loops.pass_ended(variables)
    if not is_last_whole:
        loops.pass_left()


@pytest.mark.parametrize(
    ("values", "is_within", "is_last_whole", "began"),
    [
        (range(3), False, True, Beginning("epoch", 0, 2)),
        (range(3), True, True, Beginning("epoch", 0, 1)),
        (range(1, 3), False, True, Beginning("epoch", 1, 2)),
        (range(2, 4), False, True, None),
        (range(1, 3), True, True, None),
        (range(1), False, True, None),  # no one pass shows which variable counts them
        (range(3), False, False, None),  # a script that leaves its last pass counts something else
    ],
)
def test_a_script_begins_again_if_its_variable_is_before_the_checkpoint(
    values: range, is_within: bool, is_last_whole: bool, began: Beginning | None, tmp_path: Path
) -> None:
    first, again = EpochLoops(), EpochLoops()
    passes(first, range(2))
    first.save(tmp_path)
    again.resume(tmp_path)
    passes(again, values, is_last_whole)
    assert again.begins_again(is_within) == began


def test_a_script_that_goes_on_in_an_outer_loop_does_not_begin_again(tmp_path: Path) -> None:
    first, again = EpochLoops(), EpochLoops()
    first.trains({"main.stage": 0, "main.epoch": 2})
    first.save(tmp_path)
    again.resume(tmp_path)
    for epoch in range(3):
        again.pass_ended({"main.stage": 1, "main.epoch": epoch})
    assert again.begins_again(False) is None


def test_an_older_checkpoint_without_loop_variables_ends_no_script(tmp_path: Path) -> None:
    again = EpochLoops()
    again.resume(tmp_path)
    passes(again, range(3))
    assert again.begins_again(False) is None
