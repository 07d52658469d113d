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


def test_a_long_warning_does_not_hide_the_second() -> None:
    script_warnings.warn(LONG, once="outside")
    script_warnings.warn("skip the batches of the epoch", once="repeated rows")
    told = script_warnings.collected()
    assert told.startswith(LONG[:200])
    assert told.endswith("...; skip the batches of the epoch")
    assert len(told) == LARGEST_WARNING


def test_long_warnings_have_equal_shares() -> None:
    for name in ("a", "b"):
        script_warnings.warn(name + LONG, once=name)
    first, second, third = script_warnings.collected("c" + LONG).split("; ")
    assert (first[0], second[0], third[0]) == ("a", "b", "c")
    assert {len(first), len(second), len(third)} <= {92, 93}


def test_nothing_is_told_without_warnings() -> None:
    assert script_warnings.collected("") == ""
