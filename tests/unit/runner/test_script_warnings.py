"""Several warnings share a field of the report without hiding each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memtune.wire.report import LARGEST_WARNING
from memtune_runner.rank import script_warnings

LONG = "the script saves outside of checkpoint.path: let it save below it, not to /" + "directory/" * 40


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    script_warnings.reset()
    yield
    script_warnings.reset()


def test_one_warning_has_all_of_the_room() -> None:
    script_warnings.warn(LONG, once="outside")
    assert len(script_warnings.collected()) == LARGEST_WARNING
    assert script_warnings.collected().startswith(LONG[: LARGEST_WARNING - 3])


def test_a_long_warning_does_not_hide_that_there_is_a_second() -> None:
    script_warnings.warn(LONG, once="outside")
    script_warnings.warn("skip the batches of the epoch", once="repeated rows")
    told = script_warnings.collected()
    assert told.startswith(LONG[:200])
    assert told.endswith("...; 1 more in the log")
    assert len(told) == LARGEST_WARNING


def test_advice_for_the_script_is_never_cut_off() -> None:
    first, second, third = (f"{name} is wrong: {'do this ' * 14}instead" for name in "abc")
    for each in (first, second):
        script_warnings.warn(each, once=each)
    assert script_warnings.collected() == f"{first}; {second}"
    script_warnings.warn(third, once=third)
    assert script_warnings.collected() == f"{first}; 2 more in the log"


def test_a_replaced_warning_is_not_reported() -> None:
    script_warnings.warn("skip the batches of the epoch", once="rows")
    assert script_warnings.is_issued("rows")
    script_warnings.withdraw("rows")
    script_warnings.warn("begin at the second epoch", once="epochs")
    assert (script_warnings.is_issued("rows"), script_warnings.collected()) == (False, "begin at the second epoch")


def test_without_warnings_nothing_is_reported() -> None:
    assert script_warnings.collected() == ""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_omitted_warnings_are_in_the_log_once(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    first, second = "a" * 170, "b" * 150
    for each in (first, second):
        script_warnings.warn(each, once=each)
    assert script_warnings.collected() == script_warnings.collected() == f"{first}; 1 more in the log"
    told = [first, second] if rank == "0" else [second]
    assert capsys.readouterr().err.splitlines() == [f"memtune: {each}" for each in told]
